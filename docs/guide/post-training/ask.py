"""Open a model or an adapter of base/, and count its right sums: python ask.py FOLDER"""

import pathlib
import sys

from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = pathlib.Path(sys.argv[1])
if (folder / "adapter_config.json").exists():
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("base"), folder)
else:
    model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
prompts = [f"{a} + {b} =" for a in range(20) for b in range(20)]
inputs = tokenizer(prompts, return_tensors="pt")
said = model.generate(**inputs, max_new_tokens=1, do_sample=False)[:, -1:]
answers = tokenizer.batch_decode(said)
right = sum(answers[20 * a + b] == str(a + b) for a in range(20) for b in range(20))
print(f"{type(model).__name__}: {prompts[147]} {answers[147]}; {right} of {len(prompts)} right")
