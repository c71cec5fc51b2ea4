"""What emitters share: a line writer, canonical names, and one expression table per language."""
