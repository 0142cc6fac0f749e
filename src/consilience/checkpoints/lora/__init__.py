"""Low-rank adapters (LoRA, as peft writes them): merged exactly, by stacking their ranks."""
