"""Make base/: a Llama of 90,000 weights that adds up to 19 + 19, and is wrong by one half of the
time. It stands for the model that you would name from a hub or a disk."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

words = ["<unk>", "<eos>", "+", "=", *map(str, range(40))]
vocabulary = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "<unk>"))
vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=vocabulary,
    unk_token="<unk>",
    eos_token="<eos>",
    pad_token="<eos>",
    model_input_names=["input_ids", "attention_mask"],
)
torch.manual_seed(0)
torch.set_num_threads(1)
config = LlamaConfig(
    vocab_size=len(words),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=1,
)
model = LlamaForCausalLM(config)
sums = [
    f"{a} + {b} = {a + b + off} <eos>" for a in range(20) for b in range(20) for off in range(2)
]
ids = tokenizer(sums, return_tensors="pt")["input_ids"]
labels = ids.clone()
labels[:, :4] = -100  # "a + b =" is given
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(300):
    batch = torch.randint(len(ids), (128,))
    loss = model(input_ids=ids[batch], labels=labels[batch]).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.save_pretrained("base")
tokenizer.save_pretrained("base")
print(f"base: {model.num_parameters():,} weights, loss {loss.item():.2f}")
