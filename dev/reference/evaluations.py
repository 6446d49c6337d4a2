"""Compares the evaluations of `train_gpt evaluate` with this script's own, by transformers, on invented questions.

    python3 dev/reference/evaluations.py TRAIN_GPT TOKENIZE [--questions 40] [--seed 1]

Needs torch, transformers and tokenizers. Without them it says so and ends with 69.

transformers makes a small random GPT-2 with a vocabulary that `tokenize` learns from docs/. Questions are invented in the
formats in which HellaSwag, MMLU, ARC, PIQA and LAMBADA are published; `tokenize --questions` writes both versions of the
question file, and train_gpt answers them. Compared are the right answers by the sum of losses, those by the loss relative to
length (tokens in version 1, characters in version 2), LAMBADA's right last words and its perplexity. Here the questions
are put as the LM Evaluation Harness puts them: context and completion are encoded together, by tokenizers, and what lies
behind the tokens of the context alone is the completion.

TRAIN_GPT should be an fp32 build. Questions whose best answers lie too close to each other are left out. Labels are mostly the
answers that this script picks, so that an answer that is picked otherwise changes the count.
"""

import argparse
import csv
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile

try:
    import torch
    from tokenizers import Tokenizer
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError as problem:
    print(f"SKIPPED: {problem}")
    sys.exit(69)

WORDS = ("the a of model token gradient rank memory layer loss step run bytes file writes reads sends learns gathers old "
         "new large small naïve café straße two three without within every whose never parallel pipeline").split()
CLOSE = 1e-3   # nats: more than two programs in fp32 differ by


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def words(chance, least, most):
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(least, most)))


class Judge:
    """The reference: scores of completions, by transformers."""

    def __init__(self, folder, model):
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.model = model

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    @torch.no_grad()
    def score(self, context, completion):
        """Negative log likelihood of a completion, its tokens, whether each is the likeliest, and how clearly."""
        before, whole = self.encode(context), self.encode(context + completion)
        assert whole[:len(before)] == before and len(whole) > len(before)
        likelihoods = torch.log_softmax(self.model(torch.tensor([whole])).logits[0].double(), -1)
        loss, likeliest, margin = 0.0, True, math.inf
        for at in range(len(before), len(whole)):
            of_token = likelihoods[at - 1]
            best = torch.topk(of_token, 2)
            loss -= of_token[whole[at]].item()
            likeliest &= best.indices[0].item() == whole[at]
            margin = min(margin, (best.values[0] - best.values[1]).item())
        return loss, len(whole) - len(before), likeliest, margin

    def choose(self, context, answers):
        """The answers picked by sum, per token and per character; None where two are too close."""
        scored = [self.score(context, " " + answer) for answer in answers]
        picks = []
        for lengths in ([1] * len(answers), [s[1] for s in scored], [len(a) for a in answers]):
            values = sorted((s[0] / n, i) for i, (s, n) in enumerate(zip(scored, lengths)))
            if values[1][0] - values[0][0] < CLOSE:
                return None
            picks.append(values[0][1])
        return picks

    def likeliest_word(self, context):
        with torch.no_grad():
            token = self.model(torch.tensor([self.encode(context)])).logits[0, -1].argmax().item()
        word = self.tokenizer.decode([token])
        return word[1:] if re.fullmatch(r" [a-z]+", word) else None


# How each source asks, and how it is published.

def hellaswag_line(question, answers, label, _):
    return {"ctx": question, "endings": answers, "label": label, "activity_label": "invented"}


def mmlu_line(question, answers, label, _):
    return [question, *answers, "ABCD"[label]]


def arc_line(question, answers, label, number):
    names = "1234" if number % 3 == 0 else "ABCD"
    if number % 2 == 0:
        choices = [{"text": a, "label": n} for a, n in zip(answers, names)]
        return {"id": str(number), "question": {"stem": question, "choices": choices}, "answerKey": names[label]}
    return {"question": question, "choices": {"text": answers, "label": list(names)}, "answerKey": names[label]}


def piqa_line(question, answers, label, number):
    return {"goal": question, "sol1": answers[0], "sol2": answers[1], "label": str(label) if number % 2 else label}


SOURCES = {   # answers, the context, the published line
    "hellaswag": (4, "{}", hellaswag_line), "mmlu": (4, "Question: {}\n\nAnswer:", mmlu_line),
    "arc_easy": (4, "Question: {}\nAnswer:", arc_line), "arc_challenge": (4, "Question: {}\nAnswer:", arc_line),
    "piqa": (2, "Question: {}\nAnswer:", piqa_line)}


def invent_choices(judge, chance, name, count):
    """Lines as published, and the right answers by sum, per token and per character."""
    number_of_answers, context, line = SOURCES[name]
    lines, right = [], [0, 0, 0]
    while len(lines) < count:
        question = words(chance, 3, 12) + chance.choice(["", "?", ", \"so\""])
        answers = [words(chance, 1, 7) for _ in range(number_of_answers)]
        picks = judge.choose(context.format(question), answers)
        if picks is None:
            continue
        label = chance.choice([*picks, chance.randrange(number_of_answers)])
        lines.append(line(question, answers, label, len(lines)))
        right = [r + (p == label) for r, p in zip(right, picks)]
    return lines, right


def invent_texts(judge, chance, count):
    """LAMBADA's lines, how many last words are the likeliest, and their perplexity."""
    lines, right, total = [], 0, 0.0
    while len(lines) < count:
        context = words(chance, 5, 20)
        last = judge.likeliest_word(context) if len(lines) % 2 == 0 else chance.choice(WORDS)
        if last is None:
            continue
        loss, _, likeliest, margin = judge.score(context, " " + last)
        if margin < CLOSE:
            continue
        lines.append({"text": f"{context} {last}"})
        right += likeliest
        total += loss
    return lines, right, math.exp(total / count)


def write_lines(path, lines):
    with open(path, "w", newline="") as file:
        if path.endswith(".csv"):
            csv.writer(file).writerows(lines)
        else:
            file.writelines(json.dumps(line, ensure_ascii=i % 2 == 0) + "\n" for i, line in enumerate(lines))


def make_model(args, folder):
    """A random GPT-2 whose scores differ by more than rounding, and its vocabulary."""
    run([args.tokenize, "--train", "600", "--quiet", "--output", folder, "docs"])
    size = Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).get_vocab_size()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=size, n_positions=256, n_embd=64, n_layer=2, n_head=2, bos_token_id=0,
                                       eos_token_id=0, initializer_range=0.15)).eval()
    model.save_pretrained(folder)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train_gpt")
    parser.add_argument("tokenize")
    parser.add_argument("--questions", type=int, default=40, help="of each source")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    torch.manual_seed(args.seed)
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        model_folder = os.path.join(folder, "model")
        judge = Judge(model_folder, make_model(args, model_folder))
        choices, published = {}, {}
        for name in SOURCES:
            published[name] = os.path.join(folder, name + (".csv" if name == "mmlu" else ".jsonl"))
            lines, choices[name] = invent_choices(judge, chance, name, args.questions)
            write_lines(published[name], lines)
        lines, last_words, perplexity = invent_texts(judge, chance, args.questions)
        published["lambada"] = os.path.join(folder, "lambada.jsonl")
        write_lines(published["lambada"], lines)

        for version, length in ((1, "token"), (2, "character")):
            files = {name: os.path.join(folder, f"{name}{version}.bin") for name in published}
            for name, path in published.items():
                run([args.tokenize, "--questions", name, "--tokenizer", model_folder, "--output", files[name], path,
                     *(["--uint32"] if version == 2 else [])])
            told = run([args.train_gpt, "evaluate", "--model", model_folder, "--micro-batch", "3", "--evaluate",
                        ",".join(f"{name}={path}" for name, path in files.items())])
            rows = re.findall(rf"(\d+)/{args.questions} = [\d.]+ by loss per {length} \| (\d+)/{args.questions} = ", told)
            expected = [(right[version], right[0]) for right in choices.values()]
            found = [(int(by_length), int(by_sum)) for by_length, by_sum in rows]
            different += found != expected
            print(f"version {version}, of {args.questions} right per {length} and by sum: {found}, expected {expected}")
            last = re.search(rf"LAMBADA: (\d+)/{args.questions} = [\d.]+ \| perplexity ([\d.]+)", told)
            same = (last is not None and int(last.group(1)) == last_words
                    and abs(float(last.group(2)) - perplexity) < 1e-5 * perplexity + 6e-4)
            different += not same
            print(f"version {version}, LAMBADA: {last.group(0) if last else told}, expected {last_words} and {perplexity:.3f}")
    print(f"{different} differ")
    return different > 0


sys.exit(main())
