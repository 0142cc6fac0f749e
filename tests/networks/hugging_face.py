"""Small models of Hugging Face transformers from configurations, two layers of width 16 with four heads."""

import torch
import transformers

VOCABULARY, WIDTH, HEADS, LAYERS, UNITS = 40, 16, 4, 2, 24
IDS = {"input_ids": torch.arange(12).reshape(2, 6)}
IMAGES = {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}
BOTH_IDS = {**IDS, "decoder_input_ids": IDS["input_ids"]}
SOUND = {
    "input_features": torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0)),
    "decoder_input_ids": IDS["input_ids"],
}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def model(name, **settings):
    """Return a function that makes a model by the name of its class from a configuration of the same name."""
    kind = name.partition("For")[0].removesuffix("Model").removesuffix("LMHead")

    def make():
        return getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**settings))

    return make


def decoder(name, **settings):
    """Return a function that makes a decoder in the manner of Llama, two heads of keys and values."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": UNITS, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 2, "max_position_embeddings": 32, "use_cache": False}
    return model(name, **{**sizes, **heads, **NO_TOKENS, **settings})


SIZES = {"hidden_size": WIDTH, "intermediate_size": UNITS, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
READER = {"vocab_size": VOCABULARY, **SIZES, "max_position_embeddings": 32}
VISION = {**SIZES, "image_size": 16, "patch_size": 4}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS, "n_positions": 16,
        "use_cache": False, **NO_TOKENS}  # fmt: skip
STACKS = {f"{stack}_{what}": n for stack in ("encoder", "decoder")
          for what, n in (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", UNITS))}  # fmt: skip
MODELS = {
    "llama": (decoder("LlamaForCausalLM"), IDS),
    "mistral": (decoder("MistralForCausalLM", sliding_window=None), IDS),
    "qwen2": (decoder("Qwen2ForCausalLM"), IDS),
    "qwen3": (decoder("Qwen3ForCausalLM", head_dim=4), IDS),
    "gemma": (decoder("GemmaForCausalLM", head_dim=4), IDS),
    "gemma2": (decoder("Gemma2ForCausalLM", head_dim=4, sliding_window=32), IDS),
    "phi": (model("PhiForCausalLM", **READER, use_cache=False, **NO_TOKENS), IDS),
    "phi3": (decoder("Phi3ForCausalLM"), IDS),
    "mixtral": (decoder("MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2, sliding_window=None), IDS),
    "gpt2 tied": (model("GPT2LMHeadModel", **GPT2), IDS),
    "gpt2 untied": (model("GPT2LMHeadModel", **GPT2, tie_word_embeddings=False), IDS),
    "neox": (model("GPTNeoXForCausalLM", **READER, use_cache=False, **NO_TOKENS), IDS),
    "bloom": (model("BloomForCausalLM", vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS,
                    use_cache=False, **NO_TOKENS), IDS),
    "opt": (model("OPTForCausalLM", vocab_size=VOCABULARY, hidden_size=WIDTH, ffn_dim=UNITS, num_hidden_layers=LAYERS,
                  num_attention_heads=HEADS, max_position_embeddings=32, word_embed_proj_dim=WIDTH, use_cache=False,
                  bos_token_id=None, eos_token_id=None, pad_token_id=1), IDS),
    "bert": (model("BertForSequenceClassification", **READER), IDS),
    "roberta": (model("RobertaForSequenceClassification", **READER), IDS),
    "distilbert": (model("DistilBertForSequenceClassification", vocab_size=VOCABULARY, dim=WIDTH, hidden_dim=UNITS,
                         n_layers=LAYERS, n_heads=HEADS, max_position_embeddings=32), IDS),
    "vit": (model("ViTForImageClassification", **VISION, num_labels=5), IMAGES),
    "deit": (model("DeiTForImageClassification", **VISION, num_labels=5), IMAGES),
    "swin": (model("SwinForImageClassification", image_size=16, patch_size=2, embed_dim=8, depths=[1, 1],
                   num_heads=[2, 4], window_size=4, num_labels=5), IMAGES),
    "clip": (model("CLIPModel", projection_dim=8, vision_config=VISION, text_config={
        **READER, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1}), {**IDS, **IMAGES}),
    "t5": (model("T5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=WIDTH, d_ff=UNITS, d_kv=4,
                 num_layers=LAYERS, num_heads=HEADS, use_cache=False, decoder_start_token_id=0), BOTH_IDS),
    "whisper": (model("WhisperForConditionalGeneration", vocab_size=VOCABULARY, num_mel_bins=8, d_model=WIDTH, **STACKS,
                      max_source_positions=8, max_target_positions=16, use_cache=False, pad_token_id=0, bos_token_id=0,
                      eos_token_id=1, decoder_start_token_id=0, suppress_tokens=None,
                      begin_suppress_tokens=None), SOUND),
    "mamba": (model("MambaForCausalLM", vocab_size=VOCABULARY, hidden_size=WIDTH, state_size=4,
                    num_hidden_layers=LAYERS, use_cache=False, **NO_TOKENS), IDS),
    "mamba2": (model("Mamba2ForCausalLM", vocab_size=VOCABULARY, hidden_size=WIDTH, state_size=4,
                     num_hidden_layers=LAYERS, num_heads=8, head_dim=4, n_groups=1, chunk_size=4, expand=2,
                     use_cache=False, **NO_TOKENS), IDS),
}  # fmt: skip
"""Models by name, each with an example of its arguments."""


def trained(name, seed=0):
    """Return a model of a name in evaluation mode, its arrays moved from where they begin."""
    torch.manual_seed(seed)
    net = MODELS[name][0]().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net
