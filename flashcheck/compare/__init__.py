"""Pure functions over plain tensors: whoever made them."""
