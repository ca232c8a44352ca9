"""How do other systems say where the tables live? One module or package per system."""
