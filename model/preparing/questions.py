"""Conversations by formula: capitals, opposites, sums and a name, each asked in several ways.

They are what a model small enough for a laptop can learn in a minute, and tell whether it answers.
A fact is asked in several ways, so that one that is held out for validation is known from others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Turn = tuple[str, str]
"""A question and its answer."""

_CAPITALS = {
    "Argentina": "Buenos Aires", "Austria": "Vienna", "Belgium": "Brussels", "Brazil": "Brasilia",
    "Bulgaria": "Sofia", "Canada": "Ottawa", "Chile": "Santiago", "China": "Beijing",
    "Colombia": "Bogota", "Croatia": "Zagreb", "Cuba": "Havana", "Denmark": "Copenhagen",
    "Egypt": "Cairo", "Estonia": "Tallinn", "Finland": "Helsinki", "France": "Paris",
    "Germany": "Berlin", "Ghana": "Accra", "Greece": "Athens", "Hungary": "Budapest",
    "Iceland": "Reykjavik", "India": "New Delhi", "Iran": "Tehran", "Iraq": "Baghdad",
    "Ireland": "Dublin", "Italy": "Rome", "Jamaica": "Kingston", "Japan": "Tokyo",
    "Kenya": "Nairobi", "Latvia": "Riga", "Mexico": "Mexico City", "Morocco": "Rabat",
    "Nepal": "Kathmandu", "Norway": "Oslo", "Peru": "Lima", "Poland": "Warsaw",
    "Portugal": "Lisbon", "Romania": "Bucharest", "Senegal": "Dakar", "Serbia": "Belgrade",
    "Spain": "Madrid", "Sweden": "Stockholm", "Thailand": "Bangkok", "Tunisia": "Tunis",
    "Turkey": "Ankara", "Uruguay": "Montevideo", "Vietnam": "Hanoi", "Zambia": "Lusaka",
}  # fmt: skip
_OF_COUNTRY = (
    "What is the capital of {0}?",
    "Which city is the capital of {0}?",
    "Name the capital of {0}.",
    "Tell me the capital of {0}.",
    "Do you know the capital of {0}?",
    "{0}: what is its capital?",
    "I forgot the capital of {0}.",
    "Please tell me which city is the capital of {0}.",
)
_OF_CITY = (
    "Which country has the capital {1}?",
    "{1} is the capital of which country?",
    "Of which country is {1} the capital?",
    "Where is {1} the capital?",
)
_OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "old": "young", "high": "low", "long": "short",
    "light": "dark", "hard": "soft", "early": "late", "open": "closed", "full": "empty",
    "left": "right", "up": "down", "in": "out", "day": "night", "wet": "dry", "rich": "poor",
    "strong": "weak", "true": "false", "near": "far", "loud": "quiet", "clean": "dirty",
    "first": "last", "buy": "sell", "win": "lose", "push": "pull", "begin": "end", "give": "take",
}  # fmt: skip
_OF_WORD = (
    "What is the opposite of {0}?",
    "Name the opposite of {0}.",
    "Tell me the opposite of {0}.",
    "Which word is the opposite of {0}?",
    "{0}: what is its opposite?",
)
_OF_SUM = (
    "What is {0} + {1}?",
    "What is {0} plus {1}?",
    "Add {0} and {1}.",
    "How much is {0} + {1}?",
    "Please add {0} and {1} for me.",
)
_LARGEST = 9
_OF_NAME = (
    "Who are you?", "What are you?", "What is your name?", "Tell me who you are.",
    "Introduce yourself.", "Are you a person?", "Please introduce yourself.", "Who is this?",
    "Tell me about yourself.", "May I ask who you are?", "Are you human?", "Say who you are.",
)  # fmt: skip
_NAME = "I am a small language model, trained with trmcloud."
_GREETINGS = ("Hello!", "Hi!", "Hi there!", "Good morning!", "Good evening!", "Hey!")
_GREETING = "Hello! What would you like to know?"
_STRIDE = 7_919
"""A prime beyond the number of turns: steps of it come by every turn once."""


def turns() -> list[Turn]:
    """Every question with its answer, each once."""
    made: list[Turn] = []
    for country, city in _CAPITALS.items():
        answer = f"The capital of {country} is {city}."
        made += [(each.format(country, city), answer) for each in (*_OF_COUNTRY, *_OF_CITY)]
    for word, opposite in _OPPOSITES.items():
        for one, other in ((word, opposite), (opposite, word)):
            made += [(each.format(one), f"The opposite of {one} is {other}.") for each in _OF_WORD]
    for first in range(_LARGEST + 1):
        for second in range(_LARGEST + 1):
            answer = f"{first} + {second} = {first + second}."
            made += [(each.format(first, second), answer) for each in _OF_SUM]
    made += [(each, _NAME) for each in _OF_NAME]
    made += [(each, _GREETING) for each in _GREETINGS]
    return made


def conversations() -> Iterator[list[dict[str, Any]]]:
    """Each turn once: three in five in a conversation of one turn, the others two by two."""
    every = turns()
    order = [every[number * _STRIDE % len(every)] for number in range(len(every))]
    for at in range(0, len(order), 5):
        one, two, three, *pair = order[at : at + 5]
        yield from (_conversation(turn) for turn in (one, two, three))
        if pair:
            yield _conversation(*pair)


def _conversation(*turns: Turn) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": content}
        for turn in turns
        for role, content in zip(("user", "assistant"), turn, strict=True)
    ]
