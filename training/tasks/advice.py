"""What nano has to say when it gives advice, by topic. All of it written for this project."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """A topic and its points: a short form and its expansion."""

    topic: str
    points: tuple[tuple[str, str], ...]


ADVICE = (
    Advice(
        "staying healthy",
        (
            (
                "Eat fruit and vegetables",
                "Fruit and vegetables give the body what it needs. Try to eat some of them "
                "with every meal.",
            ),
            (
                "Walk every day",
                "A daily walk keeps the heart strong and the mind calm. Half an hour is "
                "enough to feel better.",
            ),
            (
                "Sleep eight hours",
                "Good sleep lets the body rest and repair itself. Go to bed at the same time "
                "each night.",
            ),
            (
                "Drink enough water",
                "Water keeps the body fresh and helps you think. Keep a glass on your desk "
                "and fill it often.",
            ),
            (
                "Take time to rest",
                "Rest is as important as work. A short break lowers stress and brings back "
                "your strength.",
            ),
        ),
    ),
    Advice(
        "learning a language",
        (
            (
                "Practice every day",
                "Ten minutes a day are better than two hours once a week. Small steps stay "
                "in memory.",
            ),
            (
                "Speak with people",
                "Talking with others makes you quick and brave. Mistakes are part of learning.",
            ),
            (
                "Read easy books",
                "Easy books show you words in use. Read slowly and guess what you do not know.",
            ),
            (
                "Listen to songs",
                "Songs train the ear and teach the sound of words. Sing along when you can.",
            ),
            (
                "Write short notes",
                "Writing makes you think about each word. Keep a small diary in the new language.",
            ),
        ),
    ),
    Advice(
        "saving money",
        (
            (
                "Make a budget",
                "Write down what you earn and what you spend. A plan shows where the money goes.",
            ),
            (
                "Cook at home",
                "Meals at home cost less than meals in a restaurant. Cook for two days at once.",
            ),
            (
                "Compare prices",
                "The same thing has many prices. Look in three shops before you buy.",
            ),
            (
                "Wait before you buy",
                "Sleep one night before you buy something big. Often the wish is gone in the "
                "morning.",
            ),
            (
                "Save a little each month",
                "Put a small sum aside every month. After a year it has grown into something "
                "useful.",
            ),
        ),
    ),
    Advice(
        "writing well",
        (
            (
                "Use short sentences",
                "Short sentences are easy to read. Say one thing at a time and then stop.",
            ),
            (
                "Read your text aloud",
                "Your ear finds what your eye misses. If a sentence sounds wrong, change it.",
            ),
            (
                "Cut what is not needed",
                "Every word should do some work. Take out the words that do nothing.",
            ),
            (
                "Begin with the main point",
                "Tell the reader at once what the text is about. The details can follow.",
            ),
            (
                "Ask a friend to read it",
                "A friend sees what is not clear. Thank them and make it better.",
            ),
        ),
    ),
    Advice(
        "growing tomatoes",
        (
            (
                "Choose a sunny place",
                "Tomatoes love the sun. Give them a place with six hours of light a day.",
            ),
            (
                "Water them at the roots",
                "Pour the water on the soil and not on the leaves. Wet leaves become sick.",
            ),
            (
                "Tie them to a stick",
                "A stick keeps the plant from falling. Tie it softly with a piece of string.",
            ),
            ("Feed the soil", "Good soil gives good fruit. Add some compost before you plant."),
            (
                "Pick them when they are red",
                "A red tomato is sweet and ripe. Pick it in the morning when it is cool.",
            ),
        ),
    ),
    Advice(
        "better sleep",
        (
            (
                "Keep the room dark",
                "Darkness tells the body that it is night. Close the curtains and turn off "
                "the lights.",
            ),
            (
                "Put the phone away",
                "Bright screens keep you awake. Leave the phone in another room.",
            ),
            (
                "Go to bed at the same time",
                "The body likes a steady rhythm. Choose a time and keep to it.",
            ),
            (
                "Drink no coffee at night",
                "Coffee stays in the body for hours. Drink tea or water in the evening.",
            ),
            (
                "Read a calm book",
                "A calm book slows the mind. A few pages are enough to make you sleepy.",
            ),
        ),
    ),
    Advice(
        "making friends",
        (
            (
                "Smile and say hello",
                "A smile opens many doors. Say hello first and see what happens.",
            ),
            (
                "Ask questions",
                "People like to tell about themselves. Ask and then listen to the answer.",
            ),
            (
                "Join a club",
                "In a club you meet people who like what you like. Choose one that is near "
                "your home.",
            ),
            (
                "Be a good listener",
                "Listening shows that you care. Let others finish before you speak.",
            ),
            (
                "Keep your word",
                "Friends trust a person who keeps a promise. Do what you said you would do.",
            ),
        ),
    ),
    Advice(
        "public speaking",
        (
            (
                "Know your first sentence",
                "A good start makes you calm. Learn the first sentence by heart.",
            ),
            ("Speak slowly", "Slow speech is easy to follow. Take a breath after each point."),
            (
                "Look at the people",
                "Look at one person and then at another. They will feel that you speak to them.",
            ),
            (
                "Practice in front of a mirror",
                "A mirror shows your face and your hands. Repeat the talk until it feels easy.",
            ),
            (
                "Tell a story",
                "People remember stories better than numbers. Use one to make your point.",
            ),
        ),
    ),
    Advice(
        "learning to cook",
        (
            (
                "Start with simple dishes",
                "A simple soup teaches more than a hard cake. Learn three dishes well.",
            ),
            (
                "Read the recipe first",
                "Read everything before you begin. Then you know what comes next.",
            ),
            (
                "Use a sharp knife",
                "A sharp knife is safer than a dull one. It cuts where you want.",
            ),
            (
                "Taste as you cook",
                "Tasting tells you what is missing. Add salt a little at a time.",
            ),
            (
                "Clean as you go",
                "A clean kitchen is a calm kitchen. Wash the bowls while the food is cooking.",
            ),
        ),
    ),
    Advice(
        "good programs",
        (
            (
                "Choose clear names",
                "A clear name explains the code. The reader should not have to guess.",
            ),
            (
                "Write tests",
                "Tests show that the program does what it should. Run them after every change.",
            ),
            (
                "Keep functions small",
                "A small function does one thing. It is easy to read and easy to test.",
            ),
            (
                "Measure before you change",
                "Measure where the time goes. Then change only what is slow.",
            ),
            (
                "Remove what is not used",
                "Code that nobody uses costs time. Delete it and keep the rest simple.",
            ),
        ),
    ),
    Advice(
        "a good holiday",
        (
            (
                "Pack only a little",
                "A light bag makes every trip easier. Take what you need and no more.",
            ),
            (
                "Plan the first day",
                "A plan for the first day takes away the stress. The other days can be free.",
            ),
            (
                "Try the local food",
                "Local food tells you about the place. Eat where the people of the town eat.",
            ),
            ("Take breaks", "You do not have to see everything. Sit down and look at the world."),
            (
                "Learn a few words",
                "A few words of the language open hearts. Learn to say hello and thank you.",
            ),
        ),
    ),
    Advice(
        "a tidy home",
        (
            (
                "Give everything a place",
                "When each thing has a place, it is easy to find. Put it back after use.",
            ),
            (
                "Clean a little every day",
                "Ten minutes a day are enough. Then the work never grows too big.",
            ),
            (
                "Give away old things",
                "Old things fill the room. Give them to someone who needs them.",
            ),
            ("Make the bed", "A made bed makes the room look neat. It takes only one minute."),
            (
                "Wash the dishes at once",
                "Dishes are easy to wash when they are fresh. Do it right after the meal.",
            ),
        ),
    ),
    Advice(
        "caring for a dog",
        (
            (
                "Walk the dog twice a day",
                "A dog needs to run and to smell the world. Two walks a day keep it happy.",
            ),
            ("Give fresh water", "Fresh water should always be there. Change it every morning."),
            ("Train with patience", "A dog learns by repeating. Praise it when it does well."),
            (
                "Brush its coat",
                "Brushing keeps the coat clean. It is also a good time to be close.",
            ),
            ("Visit the vet", "A vet finds problems early. Go there once a year."),
        ),
    ),
    Advice(
        "studying for an exam",
        (
            (
                "Start early",
                "Starting early takes away the fear. A little work each day is enough.",
            ),
            (
                "Make a plan",
                "A plan divides the work into small parts. Mark each part when it is done.",
            ),
            (
                "Test yourself",
                "Questions show what you really know. Close the book and answer from memory.",
            ),
            (
                "Take short breaks",
                "The mind needs a pause. Work for half an hour and then walk a bit.",
            ),
            (
                "Explain it to a friend",
                "When you can explain it, you know it. A friend will ask good questions.",
            ),
        ),
    ),
    Advice(
        "riding a bicycle",
        (
            ("Wear a helmet", "A helmet protects your head. Make sure that it fits well."),
            ("Check the brakes", "Good brakes keep you safe. Test them before every ride."),
            (
                "Use lights at night",
                "Lights let others see you. Use a white one in front and a red one behind.",
            ),
            ("Look far ahead", "Look where you want to go. Then you see holes and cars in time."),
            ("Pump the tires", "Full tires roll easily. Check them once a week."),
        ),
    ),
    Advice(
        "working in a team",
        (
            (
                "Share what you know",
                "Knowledge grows when it is shared. Tell the others what you found.",
            ),
            ("Be on time", "Being on time shows respect. The others can count on you."),
            ("Say thank you", "A thank you costs nothing and means a lot. Say it often."),
            (
                "Ask for help early",
                "Nobody can do everything alone. Ask before the problem is big.",
            ),
            (
                "Divide the work",
                "When the work is divided, everyone knows what to do. Write down who does "
                "which part.",
            ),
        ),
    ),
)
