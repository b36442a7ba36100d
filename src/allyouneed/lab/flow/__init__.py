"""How gradients travel over distance."""
