"""Low-rank adapters (LoRA of peft, of kohya's trainer, of diffusers): merged exactly, by stacking their ranks."""
