"""Sample text from a language model subject to constraints (MuCoLa)."""
