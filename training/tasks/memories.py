"""What a user may tell of himself and ask back, and the small talk around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.draw import Draw, Wording, ways
from training.words import ANIMALS, COLOURS, FOODS, HOBBIES, TRADES


@dataclass(frozen=True, slots=True)
class Memory:
    """Something a user tells, and how it is asked back. `{v}` is the value."""

    say: Wording
    ask: Wording
    full: str
    draw: Callable[[Draw], str]


MEMORIES = (
    Memory(
        ways(
            "My name is {v}.",
            "I am {v}.",
            "I'm {v}.",
            "Call me {v}.",
            "Hello, my name is {v}.",
            "Hi, I am {v}.",
            "Hello, I am {v}.",
            "People call me {v}.",
            "Hey, it is {v} here.",
            held=("Hello, I'm {v}.", "Hi, my name is {v}."),
        ),
        ways(
            "What is my name?",
            "Who am I?",
            "Do you know my name?",
            "What's my name?",
            "Tell me my name.",
            "What was my name?",
            "Can you say my name?",
            "Do you still know my name?",
            held=("Do you remember my name?", "Can you tell me my name?"),
        ),
        "Your name is {v}.",
        lambda d: d.person(),
    ),
    Memory(
        ways(
            "I live in {v}.",
            "My home is in {v}.",
            "I come from {v}.",
            "I am from {v}.",
            "I moved to {v}.",
            "My town is {v}.",
            "For years my home has been {v}.",
            "I have a house in {v}.",
            "I live in the town of {v}.",
            held=("I have lived in {v} for years.", "My home town is {v}."),
        ),
        ways(
            "Where do I live?",
            "What town do I live in?",
            "Where am I from?",
            "Where is my home?",
            "In what town do I live?",
            "Do you know where I live?",
            "Tell me where I live.",
            "Which town is my home?",
            held=("Do you remember where I live?", "In which town do I live?"),
        ),
        "You live in {v}.",
        lambda d: d.town(),
    ),
    Memory(
        ways(
            "I am {v} years old.",
            "I'm {v} years old.",
            "My age is {v}.",
            "I turned {v} this year.",
            "By now I am {v} years old.",
            "I have reached the age of {v}.",
            held=("I am now {v} years old.",),
        ),
        ways(
            "How old am I?",
            "What is my age?",
            "Do you know my age?",
            "Tell me my age.",
            "Do you know how old I am?",
            "Can you tell how old I am?",
            held=("Do you remember how old I am?", "Tell me how old I am."),
        ),
        "You are {v} years old.",
        lambda d: str(d.number(5, 99)),
    ),
    Memory(
        ways(
            "My favorite color is {v}.",
            "I like the color {v}.",
            "The color I like best is {v}.",
            "I always wear {v}, my favorite color.",
            "Of all colors I love {v}.",
            held=("I love the color {v}.",),
        ),
        ways(
            "What is my favorite color?",
            "Which color do I like?",
            "What color do I like best?",
            "Do you know my favorite color?",
            "What color do I love?",
            "Tell me my favorite color.",
            "Which color is my favorite?",
            held=("Do you remember my favorite color?", "Which color do I love?"),
        ),
        "Your favorite color is {v}.",
        lambda d: d.listed(COLOURS),
    ),
    Memory(
        ways(
            "I have a {v}.",
            "My pet is a {v}.",
            "I own a {v}.",
            "At home I have a {v}.",
            "A {v} lives with me.",
            "I keep a {v}.",
            "I take care of a {v} at home.",
            held=("I keep a {v} at home.",),
        ),
        ways(
            "What pet do I have?",
            "Which animal do I have?",
            "What is my pet?",
            "Which animal do I own?",
            "What animal do I keep?",
            "Do you know what pet I have?",
            "Tell me my pet.",
            held=("Do you remember my pet?", "What animal do I own?"),
        ),
        "You have a {v}.",
        lambda d: d.listed(ANIMALS),
    ),
    Memory(
        ways(
            "My favorite food is {v}.",
            "I like to eat {v}.",
            "I love {v}.",
            "I eat {v} every day.",
            "The food I love is {v}.",
            "I like {v} best of all food.",
            "Nothing tastes better to me than {v}.",
            held=("The food I like best is {v}.",),
        ),
        ways(
            "What is my favorite food?",
            "What do I like to eat?",
            "Which food do I like?",
            "What food do I love?",
            "Do you know my favorite food?",
            "Tell me what I like to eat.",
            held=("Do you remember my favorite food?", "What food do I like?"),
        ),
        "Your favorite food is {v}.",
        lambda d: d.listed(FOODS),
    ),
    Memory(
        ways(
            "I work as a {v}.",
            "My job is {v}.",
            "I am a {v} by trade.",
            "I have a job as a {v}.",
            "For years I have been a {v}.",
            "I earn money as a {v}.",
            "I found work as a {v}.",
            held=("I have worked as a {v} for years.",),
        ),
        ways(
            "What is my job?",
            "What do I do for a living?",
            "What do I work as?",
            "What is my work?",
            "Which work do I do?",
            "Do you know my job?",
            "Tell me my job.",
            held=("Do you remember my job?", "What work do I do?"),
        ),
        "Your job is {v}.",
        lambda d: d.listed(TRADES),
    ),
    Memory(
        ways(
            "My hobby is {v}.",
            "I enjoy {v}.",
            "In my free time I like {v}.",
            "My best hobby is {v}.",
            "For fun I do {v}.",
            "The hobby I love is {v}.",
            held=("My favorite hobby is {v}.",),
        ),
        ways(
            "What is my hobby?",
            "What do I enjoy?",
            "What do I do in my free time?",
            "Do you know my hobby?",
            "Tell me my hobby.",
            "What do I do for fun?",
            held=("Do you remember my hobby?",),
        ),
        "Your hobby is {v}.",
        lambda d: d.listed(HOBBIES),
    ),
    Memory(
        ways(
            "My sister is called {v}.",
            "My sister's name is {v}.",
            "I have a sister called {v}.",
            "{v} is the name of my sister.",
            "{v} is my sister.",
            held=("The name of my sister is {v}.",),
        ),
        ways(
            "What is my sister called?",
            "What is the name of my sister?",
            "Who is my sister?",
            "What is my sister's name?",
            "Tell me my sister's name.",
            "Do you know my sister's name?",
            held=("Do you remember my sister's name?",),
        ),
        "Your sister is called {v}.",
        lambda d: d.person(),
    ),
    Memory(
        ways(
            "The secret number is {v}.",
            "Remember the number {v}.",
            "My number is {v}.",
            "Keep the number {v} in mind.",
            "Do not forget the number {v}.",
            "Note the number {v}.",
            held=("Please remember the number {v}.",),
        ),
        ways(
            "What is the number?",
            "Which number did I tell you?",
            "What was the number?",
            "Tell me the number.",
            "Do you still know the number?",
            "Do you know the number?",
            held=("Do you remember the number?",),
        ),
        "The number is {v}.",
        lambda d: str(d.number(0, 999)),
    ),
    Memory(
        ways(
            "The code word is {v}.",
            "Remember the word {v}.",
            "The password is {v}.",
            "Keep the word {v} in mind.",
            "Do not forget the word {v}.",
            "Note the word {v}.",
            held=("Please remember the word {v}.",),
        ),
        ways(
            "What is the word?",
            "Which word did I tell you?",
            "What was the code word?",
            "Tell me the word.",
            "Do you still know the word?",
            "Do you know the word?",
            held=("Do you remember the word?",),
        ),
        "The word is {v}.",
        lambda d: d.word(),
    ),
)
SMALL_TALK = (
    (
        ("Hello.", "Hello!", "Hi.", "Hi!", "Hey there.", "Good morning.", "hello"),
        "Hello! How can I help you?",
    ),
    (("Thank you.", "Thanks!", "Thanks a lot.", "Thank you very much."), "You are welcome!"),
    (
        ("Who are you?", "What are you?", "What is your name?", "Tell me about yourself."),
        "I am nano, a small language model that ships with lmprog.",
    ),
    (
        ("How are you?", "How are you today?", "How do you do?"),
        "I am fine, thank you. How are you?",
    ),
    (
        ("What can you do?", "How can you help me?", "What do you know?"),
        "I can read short texts, fill in JSON, sort messages, add numbers and remember what "
        "you tell me.",
    ),
    (("Goodbye.", "Bye!", "See you later.", "Good night."), "Goodbye! See you soon."),
    (
        ("What is lmprog?", "Tell me about lmprog.", "Explain lmprog."),
        "lmprog is a runtime for programs that call a language model.",
    ),
)
