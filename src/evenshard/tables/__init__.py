"""What an embedding table is, and where tables come from: files, traffic, public sets, a generator."""
