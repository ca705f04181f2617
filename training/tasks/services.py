"""Tools that do one thing each, with their requests: a table. Knows no documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.draw import Draw, Wording, ways
from training.tasks.tool_offer import JsonValue, Offer, Parameter, Use
from training.words import COLOURS, DAYS, FOODS, GOODS, INSTRUMENTS, OPPOSITES, SINGULARS


def _note(draw: Draw) -> str:
    return draw.one(
        (
            f"I come on {draw.one(DAYS)}.",
            f"The {draw.one(SINGULARS)} is in the {draw.listed(('kitchen', 'hall', 'garden'))}.",
            f"Bring {draw.listed(FOODS)}.",
            f"{draw.person()} has the {draw.one(SINGULARS)}.",
            f"We meet in {draw.town()}.",
            f"The code is {draw.number(100, 9999)}.",
        )
    )


def _errand(draw: Draw) -> str:
    return draw.one(
        (
            f"call {draw.person()}",
            f"buy {draw.listed(FOODS)}",
            f"go to {draw.town()}",
            f"clean the {draw.one(SINGULARS)}",
            f"bring {draw.person()} the {draw.one(SINGULARS)}",
        )
    )


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter to be named: its possible names, its schema, and how its value is drawn."""

    keys: tuple[str, ...]
    draw: Callable[[Draw], JsonValue]
    options: tuple[str, ...] = ()

    def named(self, draw: Draw) -> Parameter:
        if self.options:
            return Parameter(self.keys[0], {"enum": list(self.options)})
        kind = type(self.draw(draw))
        return Parameter(draw.one(self.keys), {"type": "integer" if kind is int else "string"})


@dataclass(frozen=True, slots=True)
class Service:
    """A tool to be named. In requests and replies `{0}`, `{1}` are the arguments, `{r}` the result."""

    names: tuple[str, ...]
    abouts: tuple[str, ...]
    slots: tuple[Slot, ...]
    requests: Wording
    replies: tuple[str, ...]
    result: Callable[[Draw, list[JsonValue]], str] = lambda draw, values: "done"

    def offer(self, draw: Draw) -> Offer:
        """It, under names of this document."""
        parameters = tuple(slot.named(draw) for slot in self.slots)
        reply = self.replies[0]

        def use(draw: Draw) -> Use:
            values = [slot.draw(draw) for slot in self.slots]
            result = self.result(draw, values)
            arguments = {p.key: value for p, value in zip(parameters, values, strict=True)}
            request = draw.template(self.requests).format(*values)
            return Use(request, arguments, result, reply.format(*values, r=result))

        return Offer(draw.one(self.names), draw.one(self.abouts), parameters, use)


def _from(*values: str) -> Slot:
    return Slot((values[0],), lambda draw: draw.one(values[1:]), values[1:])


def _number(keys: str, low: int, high: int) -> Slot:
    return Slot(tuple(keys.split()), lambda draw: draw.number(low, high))


def _text(keys: str, make: Callable[[Draw], str]) -> Slot:
    return Slot(tuple(keys.split()), make)


def _computed(operator: Callable[[int, int], int]) -> Callable[[Draw, list[JsonValue]], str]:
    return lambda draw, values: str(operator(int(values[0]), int(values[1])))


_PERSON = "name person who"
_TOWN = "town city place location"
_THING = "item thing article product"

SERVICES: tuple[Service, ...] = (
    Service(
        ("add", "sum_of", "add_numbers", "plus"),
        ("Adds two numbers.", "The sum of two numbers.", "Computes a + b."),
        (_number("a x first", 2, 999), _number("b y second", 2, 999)),
        ways(
            "What is {0} + {1}?",
            "Add {0} and {1}.",
            "What is {0} plus {1}?",
            "{0} + {1} = ?",
            "Compute {0} + {1}.",
            "I need the sum of {0} and {1}.",
            held=("How much is {0} plus {1}?", "Please add {0} and {1}."),
        ),
        ("{r}",),
        _computed(lambda a, b: a + b),
    ),
    Service(
        ("subtract", "difference", "minus", "subtract_numbers"),
        ("Subtracts b from a.", "The difference of two numbers.", "Computes a - b."),
        (_number("a x first", 50, 999), _number("b y second", 2, 49)),
        ways(
            "What is {0} - {1}?",
            "Subtract {1} from {0}.",
            "What is {0} minus {1}?",
            "{0} - {1} = ?",
            "Compute {0} - {1}.",
            "Take {1} away from {0}.",
            held=("How much is {0} minus {1}?", "Please subtract {1} from {0}."),
        ),
        ("{r}",),
        _computed(lambda a, b: a - b),
    ),
    Service(
        ("multiply", "product", "times", "multiply_numbers"),
        ("Multiplies two numbers.", "The product of two numbers.", "Computes a * b."),
        (_number("a x first", 2, 99), _number("b y second", 2, 99)),
        ways(
            "What is {0} * {1}?",
            "Multiply {0} by {1}.",
            "What is {0} times {1}?",
            "{0} * {1} = ?",
            "Compute {0} * {1}.",
            "I need the product of {0} and {1}.",
            held=("How much is {0} times {1}?", "Please multiply {0} by {1}."),
        ),
        ("{r}",),
        _computed(lambda a, b: a * b),
    ),
    Service(
        ("get_weather", "weather", "weather_in", "check_weather"),
        ("The weather in a town.", "Says how the weather is.", "Current weather of a place."),
        (_text(_TOWN, Draw.town),),
        ways(
            "How is the weather in {0}?",
            "What is the weather in {0}?",
            "Weather in {0}?",
            "Tell me the weather in {0}.",
            "Is it nice outside in {0}?",
            held=("What is the weather like in {0}?", "How is the weather in {0} now?"),
        ),
        ("The weather in {0} is {r}.",),
        lambda draw, values: draw.one(
            ("sunny", "rainy", "cloudy", "windy", "cold", "warm", "foggy", "snowy")
        ),
    ),
    Service(
        ("get_temperature", "temperature", "temperature_in"),
        ("The temperature in a town.", "Degrees at a place.", "Measures how warm it is."),
        (_text(_TOWN, Draw.town),),
        ways(
            "How warm is it in {0}?",
            "What is the temperature in {0}?",
            "How cold is {0}?",
            "How many degrees has {0}?",
            "Temperature of {0}?",
            held=("How warm is it now in {0}?", "Tell me the temperature in {0}."),
        ),
        ("It is {r} degrees in {0}.",),
        lambda draw, values: str(draw.number(1, 39)),
    ),
    Service(
        ("send_message", "message", "write_to", "send_text"),
        ("Sends a message to a person.", "Writes to somebody.", "Sends a text."),
        (
            _text("to receiver person name", Draw.person),
            _text("text message body", lambda d: _note(d)),
        ),
        ways(
            "Send {0} the message: {1}",
            "Tell {0}: {1}",
            "Write to {0}: {1}",
            "Send this to {0}: {1}",
            "Message {0}: {1}",
            "Let {0} know: {1}",
            held=("Send a message to {0}: {1}", "Please tell {0}: {1}"),
        ),
        ("The message to {0} is sent.",),
    ),
    Service(
        ("call_person", "phone", "make_call", "dial"),
        ("Calls a person by phone.", "Makes a phone call.", "Phones somebody."),
        (_text(_PERSON, Draw.person),),
        ways(
            "Call {0}.",
            "Phone {0}.",
            "Please call {0}.",
            "I want to talk to {0}.",
            "Make a call to {0}.",
            "Ring {0}.",
            held=("Give {0} a call.", "Please phone {0}."),
        ),
        ("I called {0}.",),
    ),
    Service(
        ("set_timer", "start_timer", "timer"),
        ("Sets a timer.", "Starts a timer of some minutes.", "Rings after some minutes."),
        (_number("minutes length duration", 1, 90),),
        ways(
            "Set a timer for {0} minutes.",
            "Start a timer of {0} minutes.",
            "Timer: {0} minutes.",
            "Tell me when {0} minutes are over.",
            "Ring in {0} minutes.",
            held=("Please set a timer of {0} minutes.", "I need a timer for {0} minutes."),
        ),
        ("The timer is set to {0} minutes.",),
    ),
    Service(
        ("set_alarm", "wake_up", "alarm"),
        ("Sets an alarm.", "Wakes you at an hour.", "Rings at an hour of the day."),
        (_number("hour time at", 1, 12), _from("part", "morning", "evening")),
        ways(
            "Set an alarm for {0} in the {1}.",
            "Wake me at {0} in the {1}.",
            "Ring at {0} in the {1}.",
            "Alarm at {0} in the {1}.",
            held=("Please wake me at {0} in the {1}.",),
        ),
        ("The alarm is set for {0} in the {1}.",),
    ),
    Service(
        ("buy", "order", "order_item", "add_to_cart"),
        ("Buys things.", "Orders an article.", "Puts something into the cart."),
        (
            _text(_THING, lambda d: d.listed((*GOODS, *FOODS))),
            _number("count amount number", 2, 40),
        ),
        ways(
            "Buy {1} {0}.",
            "Order {1} {0}.",
            "I need {1} {0}.",
            "Get me {1} {0}.",
            "Please order {1} {0}.",
            "Put {1} {0} into the cart.",
            held=("I want to buy {1} {0}.", "Please buy {1} {0}."),
        ),
        ("I ordered {1} {0}.",),
    ),
    Service(
        ("get_price", "price_of", "price", "cost_of"),
        ("The price of an article.", "What something costs.", "Looks up a price."),
        (_text(_THING, lambda d: d.listed(SINGULARS)),),
        ways(
            "How much is the {0}?",
            "What does the {0} cost?",
            "What is the price of the {0}?",
            "Price of the {0}?",
            "Tell me the price of the {0}.",
            held=("How much does the {0} cost?", "What do I pay for the {0}?"),
        ),
        ("The {0} costs {r}.",),
        lambda draw, values: str(draw.number(1, 300)),
    ),
    Service(
        ("play_music", "play", "play_song"),
        ("Plays music.", "Plays a song by its title.", "Starts a song."),
        (_text("title song name", Draw.title),),
        ways(
            "Play {0}.",
            "Play the song {0}.",
            "I want to hear {0}.",
            "Put on {0}.",
            "Start the song {0}.",
            held=("Please play {0}.", "I would like to hear {0}."),
        ),
        ("Now playing {0}.",),
    ),
    Service(
        ("switch", "switch_device", "set_device"),
        ("Turns a device on or off.", "Switches something.", "Sets the state of a device."),
        (
            _text(
                "device thing name",
                lambda d: d.listed(("light", "fan", "radio", "lamp", "oven", "heater", "pump")),
            ),
            _from("state", "on", "off"),
        ),
        ways(
            "Turn {1} the {0}.",
            "Switch {1} the {0}.",
            "Turn the {0} {1}.",
            "Switch the {0} {1}.",
            "I want the {0} {1}.",
            held=("Please turn {1} the {0}.",),
        ),
        ("The {0} is {1}.",),
    ),
    Service(
        ("set_light", "light_color", "color_room"),
        ("Sets the colour of a light.", "Changes the light of a room."),
        (
            _text(
                "room place", lambda d: d.listed(("kitchen", "hall", "cellar", "office", "attic"))
            ),
            _text("colour color", lambda d: d.listed(COLOURS)),
        ),
        ways(
            "Make the light in the {0} {1}.",
            "Set the light of the {0} to {1}.",
            "I want {1} light in the {0}.",
            "Color the light of the {0} {1}.",
            held=("Please make the light of the {0} {1}.",),
        ),
        ("The light in the {0} is {1} now.",),
    ),
    Service(
        ("remind", "add_reminder", "set_reminder", "reminder"),
        ("Reminds you on a day.", "Adds a reminder.", "Keeps a reminder for a day."),
        (_text("text what about", lambda d: _errand(d)), _from("day", *DAYS)),
        ways(
            "Remind me to {0} on {1}.",
            "On {1}, remind me to {0}.",
            "I have to {0} on {1}. Remind me.",
            "Reminder for {1}: {0}",
            held=("Please remind me on {1} to {0}.",),
        ),
        ("I will remind you on {1}.",),
    ),
    Service(
        ("book_table", "reserve_table", "book"),
        ("Books a table.", "Reserves a table in a restaurant.", "Books seats for dinner."),
        (_text("restaurant place name", Draw.title), _number("people seats guests", 2, 12)),
        ways(
            "Book a table at {0} for {1} people.",
            "Reserve a table for {1} at {0}.",
            "I need a table at {0} for {1}.",
            "A table for {1} at {0}, please.",
            held=("Please book a table for {1} people at {0}.",),
        ),
        ("A table for {1} at {0} is booked.",),
    ),
    Service(
        ("find_train", "train", "book_train", "trains"),
        ("Finds a train.", "Trains from one town to another.", "Looks for a train between towns."),
        (_text("start from origin", Draw.town), _text("goal to destination", Draw.town)),
        ways(
            "Find a train from {0} to {1}.",
            "How do I get from {0} to {1}?",
            "I want to go from {0} to {1}.",
            "Which train goes from {0} to {1}?",
            "I have to travel to {1} from {0}.",
            held=("When does a train go from {0} to {1}?", "Is there a train from {0} to {1}?"),
        ),
        ("The train from {0} to {1} leaves at {r}.",),
        lambda draw, values: f"{draw.number(1, 23)}:{draw.number(10, 59)}",
    ),
    Service(
        ("opposite", "opposite_of", "antonym"),
        ("The opposite of a word.", "Finds the opposite."),
        (_text("word term", lambda d: d.one(OPPOSITES)[0]),),
        ways(
            "What is the opposite of {0}?",
            "Opposite of {0}?",
            "Say the opposite of {0}.",
            held=("Tell me the opposite of {0}.",),
        ),
        ("The opposite of {0} is {r}.",),
        lambda draw, values: dict(OPPOSITES)[str(values[0])],
    ),
    Service(
        ("translate", "translate_word", "say_in"),
        ("Translates a word.", "Says a word in a language."),
        (
            _text("word text", Draw.word),
            _from("language", "French", "German", "Spanish", "Latin"),
        ),
        ways(
            "Translate {0} into {1}.",
            "What is {0} in {1}?",
            "How do you say {0} in {1}?",
            "{0} in {1}?",
            "Say {0} in {1}.",
            held=("Please translate {0} to {1}.",),
        ),
        ("{0} is {r} in {1}.",),
        lambda draw, values: draw.word(),
    ),
    Service(
        ("write_note", "note", "save_note", "add_note"),
        ("Keeps a note.", "Saves a text.", "Writes something down."),
        (_text("text note content", lambda d: _note(d)),),
        ways(
            "Note this: {0}",
            "Write down: {0}",
            "Keep this: {0}",
            "Save this note: {0}",
            "Make a note: {0}",
            held=("Please write down: {0}", "Please note: {0}"),
        ),
        ("I wrote it down.",),
    ),
    Service(
        ("search", "web_search", "search_for", "find"),
        ("Searches for words.", "Finds pages about something.", "Searches the web."),
        (_text("query words text", lambda d: f"{d.listed(COLOURS)} {d.listed(GOODS)}"),),
        ways(
            "Search for {0}.",
            "Find pages about {0}.",
            "Look for {0} in the web.",
            "Search the web for {0}.",
            held=("Please search for {0}.",),
        ),
        ("There are {r} pages about {0}.",),
        lambda draw, values: str(draw.number(2, 900)),
    ),
    Service(
        ("find_teacher", "teacher", "teacher_of"),
        ("Finds a teacher of an instrument.", "Who teaches an instrument."),
        (_text("instrument what", lambda d: d.listed(INSTRUMENTS)), _text(_TOWN, Draw.town)),
        ways(
            "Who teaches the {0} in {1}?",
            "Find a {0} teacher in {1}.",
            "I want to learn the {0} in {1}.",
            held=("I need a teacher for the {0} in {1}.",),
        ),
        ("{r} teaches the {0} in {1}.",),
        lambda draw, values: draw.person(),
    ),
)
