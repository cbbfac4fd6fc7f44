"""Model cards: one file a model, with a function of its name that returns its card."""
