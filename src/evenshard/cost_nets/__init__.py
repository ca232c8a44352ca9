"""What will a placement cost, without measuring it? One module per published cost network."""
