"""Models: what they are (config), where their weights come from (weights), and one file for each family."""
