"""One way of naming things: a text `name:key=value,...`, and registries of the things that such a text can name.

`Given` is a text that stands for an object of the caller; `storable` marks the classes that files hold, by name.

A function or a class is registered where it is defined. Its name is the kebab-case of its Python name; parameters with
their types and defaults are read off its signature, its help off its docstring. A text that names nothing is refused
with the known names, keys or values and the nearest of them.

>>> shapes = Registry("shape")
>>> @shapes.register(example="flat-box:width=3")
... def flat_box(width: int, depth: float = 0.5) -> tuple[int, float]:
...     \"\"\"A box without height.\"\"\"
...     return width, depth
>>> shapes.make("flat-box:width=4"), shapes["flat-box"].help
((4, 0.5), 'A box without height.')
>>> shapes.make("flat-box:widht=4")
Traceback (most recent call last):
...
mfdl.errors.InvalidInput: shape flat-box: unknown parameter 'widht'; did you mean 'width'? Known: width, depth; e.g. \
flat-box:width=3.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from .errors import InvalidInput, did_you_mean, unknown_name

Registered = TypeVar("Registered", bound=Callable[..., Any])
MAX_DIGITS = 18
TYPES: Mapping[str, type] = {kind.__name__: kind for kind in (bool, int, float, str)}
WORDS = {bool: "true or false", int: f"an integer of at most {MAX_DIGITS} digits", float: "a number", str: "a text"}
TRUTH = {"true": True, "false": False, "1": True, "0": False}


class Spec(NamedTuple):
    """A text in its parts: before the first colon; (key, value), the key None of a value that is given by position."""

    name: str
    settings: tuple[tuple[str | None, str], ...]


def parse(text: str) -> Spec:
    """The parts of `name`, `name:key=value,...` or, with values by position, `name:value:...`.

    >>> parse("regular:n=16, degree=4")
    Spec(name='regular', settings=(('n', '16'), ('degree', '4')))
    >>> parse("last:48:0.01").settings
    ((None, '48'), (None, '0.01'))
    """
    name, _, settings = text.strip().partition(":")
    pieces = settings.split(",") if settings.strip() else []
    return Spec(name.strip(), tuple(part for piece in pieces for part in _parts(piece)))


def setting(text: str) -> tuple[str | None, str]:
    """One `key=value`; the key is None where there is no equals sign. Hyphens in a key are read as underscores."""
    key, equals, value = (part.strip() for part in text.partition("="))
    return (key.replace("-", "_"), value) if equals else (None, key)


def _parts(piece: str) -> list[tuple[str | None, str]]:
    if "=" in piece:
        return [setting(piece)]
    return [(None, value.strip()) for value in piece.split(":") if value.strip()] or [(None, "")]


def kebab_case(name: str) -> str:
    """A Python name as the command line writes it.

    >>> kebab_case("dp_dsgd"), kebab_case("OncePerEpoch"), kebab_case("LDP")
    ('dp-dsgd', 'once-per-epoch', 'ldp')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower().replace("_", "-")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of something that has a name.

    Attributes: type: of a text's value: bool, int, float or str; None where no text can say it, as for an array.
    """

    name: str
    type: type | None
    required: bool
    default: Any = None

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> Parameter:
        """As a signature has it; of a union the first of the types that a text can say."""
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        kinds = (TYPES.get(word.strip()) for word in text.split("|"))
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        return cls(parameter.name, next((kind for kind in kinds if kind), None), required, default)

    @property
    def type_name(self) -> str:
        return "" if self.type is None else self.type.__name__

    def read(self, text: str, where: str) -> bool | int | float | str:
        kind = self.type or str
        try:
            if kind is int and not re.fullmatch(rf"[+-]?[0-9_]{{1,{MAX_DIGITS}}}", text):
                raise ValueError
            value: bool | int | float | str = TRUTH[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            start = text if len(text) <= 40 else f"{text[:37]}..."
            raise InvalidInput(f"{where}: {self.name} must be {WORDS[kind]}, got {start!r}.") from None
        return value


@dataclasses.dataclass(frozen=True)
class Entry:
    """What a name stands for. Registries with further facts about their entries take a subclass.

    Attributes: kind: what is named, in refusals: "graph"; example: a complete text, default the name; fixed: arguments
        that the name decides; supplied: parameters that the caller of the registry supplies, so that no text sets them;
        by_position: a text gives values by position, as in last:48:0.01.
    """

    kind: str
    name: str
    build: Callable[..., Any]
    example: str = ""
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    supplied: Collection[str] = ()
    by_position: bool = False

    @property
    def help(self) -> str:
        return (inspect.getdoc(self.build) or "").partition("\n")[0]

    @functools.cached_property
    def signature(self) -> Mapping[str, Parameter]:
        parameters = inspect.signature(self.build).parameters.values()
        return {given.name: Parameter.of(given) for given in parameters if given.name not in self.fixed}

    @functools.cached_property
    def free(self) -> Mapping[str, Parameter]:
        """The parameters that the caller of the registry does not supply."""
        return {name: parameter for name, parameter in self.signature.items() if name not in self.supplied}

    @functools.cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        return {name: parameter for name, parameter in self.free.items() if parameter.type is not None}

    @property
    def form(self) -> str:
        """How a text names it: the example, or the places of values by position."""
        if not self.by_position:
            return self.example or self.name
        places = [f":{parameter.name.upper()}" for parameter in self.parameters.values()]
        least = [place for place, parameter in zip(places, self.parameters.values(), strict=True) if parameter.required]
        optional = "".join(f"[{place}" for place in places[len(least) :]) + "]" * (len(places) - len(least))
        return f"{self.name}{''.join(least)}{optional}"

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        return self.build(*args, **{**self.fixed, **arguments})

    def arguments(
        self, settings: Iterable[tuple[str | None, str]] = (), given: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The settings of a text as arguments of `build`, beside those given in Python."""
        where = f"{self.kind} {self.name}"
        arguments = dict(given or {})
        for key in arguments:
            self._require_known(key, self.free)
        for key, text in self._by_key(tuple(settings)):
            self._require_known(key, self.parameters)
            if key in arguments:
                raise InvalidInput(f"{where}: parameter {key!r} is given twice; give it once.")
            arguments[key] = self.parameters[key].read(text, where)
        return arguments

    def require_complete(self, arguments: Mapping[str, Any]) -> None:
        missing = [name for name, parameter in self.parameters.items() if parameter.required and name not in arguments]
        if missing and self.by_position:
            raise self._miswritten(self.name)
        if missing:
            raise InvalidInput(f"{self.kind} {self.name} needs the parameter {missing[0]!r}; e.g. {self.form}.")

    def _by_key(self, settings: tuple[tuple[str | None, str], ...]) -> Iterator[tuple[str, str]]:
        """The settings with those by position at the names of their places."""
        values = [value for key, value in settings if key is None]
        places = list(self.parameters.values()) if self.by_position else []
        if len(values) > len(places) and places and places[-1].type is str:  # the rest is one text, as average:48 is
            values[len(places) - 1 :] = [":".join(values[len(places) - 1 :])]
        if len(values) > len(places):
            raise self._miswritten(":".join(values))
        yield from ((parameter.name, value) for parameter, value in zip(places, values, strict=False))
        yield from ((key, value) for key, value in settings if key is not None)

    def _miswritten(self, text: str) -> InvalidInput:
        where = f"{self.kind} {self.name}"
        if not self.by_position:
            return InvalidInput(f"{where}: parameters are written key=value, got {text!r}; e.g. {self.form}.")
        return InvalidInput(f"{where} is written {self.form}, got {text!r}{self.example and f'; e.g. {self.example}'}.")

    def _require_known(self, key: str, known: Mapping[str, Parameter]) -> None:
        if not known:
            raise InvalidInput(f"{self.kind} {self.name} has no parameters, got {key!r}; leave it out.")
        if key not in known:
            raise InvalidInput(
                f"{self.kind} {self.name}: unknown parameter {key!r}{did_you_mean(key, known)} Known: "
                f"{', '.join(known)}; e.g. {self.form}."
            )


Named = TypeVar("Named", bound=Entry)


class Registry(Mapping[str, Named], Generic[Named]):
    """The things of one kind that have names, in the order of their registration.

    Args: kind: in refusals: "graph"; entry: the class of entries; supplied, by_position: as of `Entry`; places: modules
        that register entries: imported when the first name is asked for, and the order of the names.
    """

    def __init__(
        self,
        kind: str,
        entry: type[Named] | None = None,
        *,
        supplied: Collection[str] = (),
        by_position: bool = False,
        places: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self._entry: Any = entry or Entry
        self._common = {"kind": kind, "supplied": tuple(supplied), "by_position": by_position}
        self._registered: dict[str, Named] = {}
        self._places = tuple(places)

    @property
    def _entries(self) -> dict[str, Named]:
        if self._places:
            for place in self._places:
                importlib.import_module(place)
            order = {place: index for index, place in enumerate(self._places)}

            def place_of(name: str) -> int:
                return order.get(self._registered[name].build.__module__, len(order))

            names = sorted(self._registered, key=place_of)  # exact: integers
            self._registered, self._places = {name: self._registered[name] for name in names}, ()
        return self._registered

    def register(self, *, name: str | None = None, **facts: Any) -> Callable[[Registered], Registered]:
        """Gives a function or class a name, default the kebab-case of its own; facts: further fields of its entry."""

        def registered(build: Registered) -> Registered:
            chosen = name or kebab_case(build.__name__)
            if chosen in self._registered:
                raise InvalidInput(f"{self.kind} {chosen!r} is registered already; give the other one a name.")
            self._registered[chosen] = self._entry(name=chosen, build=build, **self._common, **facts)
            return build

        return registered

    def __getitem__(self, name: str) -> Named:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, name: str) -> Named:
        if not isinstance(name, str) or name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)
        return self._entries[name]

    def read(self, text: str) -> tuple[Named, dict[str, Any]]:
        named = parse(text)
        entry = self.entry(named.name)
        return entry, entry.arguments(named.settings)

    def make(self, text: str, *args: Any, given: Mapping[str, Any] | None = None, **supplied: Any) -> Any:
        """What a text names, made.

        Args: args: its first arguments; given: in Python, beside those of the text; supplied: those of
            `Registry.supplied`, which go to what takes them.
        Raises: InvalidInput: an unknown name, an unknown, missing or repeated parameter, a value of another type.
        """
        named = parse(text)
        entry = self.entry(named.name)
        arguments = entry.arguments(named.settings, given)
        entry.require_complete(arguments)
        return entry(*args, **arguments, **{key: supplied[key] for key in supplied if key in entry.signature})


Fields = ParamSpec("Fields")
Config = TypeVar("Config")
Answer = TypeVar("Answer")


def takes_fields_of(
    config: Callable[Fields, Config],
) -> Callable[[Callable[[Config], Answer]], Callable[Fields, Answer]]:
    """Makes a function of a config callable with the config's fields; `help` and type checkers see them.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Sum:
    ...     first: int
    ...     second: int = 2
    >>> @takes_fields_of(Sum)
    ... def total(config):
    ...     return config.first + config.second
    >>> total(1, second=4), str(inspect.signature(total))
    (5, "(first: 'int', second: 'int' = 2)")
    >>> total(1, seconds=4)
    Traceback (most recent call last):
    ...
    TypeError: total() got an unexpected keyword argument 'seconds'; did you mean 'second'? Known: first, second.
    """
    signature = inspect.signature(config)

    def of(function: Callable[[Config], Answer]) -> Callable[Fields, Answer]:
        @functools.wraps(function)
        def called(*args: Fields.args, **fields: Fields.kwargs) -> Answer:
            bound_arguments(function.__name__, signature, args, fields)  # named as it was called, not as the config
            return function(config(*args, **fields))

        wrapper: Any = called
        returned = inspect.signature(function).return_annotation
        wrapper.__signature__ = signature.replace(return_annotation=returned)
        return called

    return of


def refusing(
    elsewhere: Mapping[str, str],
) -> Callable[[Callable[Fields, Answer]], Callable[Fields, Answer]]:
    """Makes a function refuse keywords of other functions, in words that say what to use instead, by keyword."""

    def decorated(function: Callable[Fields, Answer]) -> Callable[Fields, Answer]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*args: Fields.args, **named: Fields.kwargs) -> Answer:
            for keyword in named:
                if keyword in elsewhere and keyword not in signature.parameters:
                    raise InvalidInput(f"{function.__name__} takes no {keyword}: {elsewhere[keyword]}.")
            bound_arguments(function.__name__, signature, args, named, elsewhere)
            return function(*args, **named)

        return called

    return decorated


def bound_arguments(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    elsewhere: Collection[str] = (),
) -> Mapping[str, Any]:
    """The arguments by name. Raises: TypeError: they do not fit; an unknown keyword with the nearest known one."""
    try:
        return signature.bind(*args, **named).arguments
    except TypeError as error:
        known = list(signature.parameters)
        unknown = next((keyword for keyword in named if keyword not in known), None)
        message = str(error)
        if unknown is not None:
            hint = did_you_mean(unknown, [*known, *elsewhere])
            message = f"got an unexpected keyword argument {unknown!r}{hint} Known: {', '.join(known)}."
        raise TypeError(f"{name}() {message}") from None


PREFIX = "own:"
Value = TypeVar("Value")


class Given(str, Generic[Value]):
    """The text own:LABEL:HASH of an object, and the object itself as `value`.

    >>> given = Given.named("my task", "0123456789abcdef01", object())
    >>> given, given.label
    ('own:my-task:0123456789abcdef', 'my-task')
    """

    value: Value

    def __new__(cls, text: str, value: Value) -> Given[Value]:
        given = super().__new__(cls, text)
        given.value = value
        return given

    @classmethod
    def named(cls, label: str, content_hash: str, value: Value) -> Given[Value]:
        """A text of a label, whose other characters than letters, digits and -+_ become hyphens, and a hash."""
        return cls(f"{PREFIX}{re.sub(r'[^A-Za-z0-9+_]+', '-', label).strip('-')}:{content_hash[:16]}", value)

    def __getnewargs__(self) -> tuple[str, Value]:  # type: ignore[override]  # pickled with the object
        return str(self), self.value

    @property
    def label(self) -> str:
        return text_label(self)


def text_label(text: str) -> str:
    """The label of an object's text; any other text as it is."""
    return text.split(":")[1] if text.startswith(PREFIX) and text.count(":") > 1 else text


def given_value(text: Any, option: str) -> Any:
    """The object of a text, or what is given if it is none.

    Raises: InvalidInput: the text of an object without the object, as it stands in a file.
    """
    if isinstance(text, Given):
        return text.value
    if isinstance(text, str) and text.startswith(PREFIX):
        raise InvalidInput(
            f"{option} {text!r} names an object that was given in Python, and files hold no objects: give the object "
            f"again, mfdl.compare(..., {option}=...)."
        )
    return text


Marked = TypeVar("Marked", bound=type)

_CLASSES: dict[str, type] = {}
_NAMES: dict[type, str] = {}


def storable(kind: Marked) -> Marked:
    """Class decorator: files hold objects of exactly this class, by its name; subclasses are marked themselves.

    Stored is what `stored_fields()` returns, by default the fields of a dataclass that its constructor takes. The class
    method `from_stored(**fields)`, by default the constructor, makes the object again and checks what it is given.
    """
    known = _CLASSES.setdefault(kind.__name__, kind)
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise TypeError(f"{kind.__name__} of {kind.__module__} cannot be stored beside that of {known.__module__}.")
    _CLASSES[kind.__name__], _NAMES[kind] = kind, kind.__name__
    return kind


def stored_as(general: type) -> Callable[[Marked], Marked]:
    """Class decorator: objects of exactly this class are stored, and come back, as those of a more general one."""

    def mark(kind: Marked) -> Marked:
        _NAMES[kind] = _NAMES[general]
        return kind

    return mark


def is_storable(value: object) -> bool:
    return type(value) in _NAMES


def stored_parts(value: Any) -> tuple[str, Mapping[str, Any]]:
    """The name of the class in files, and what of the object is stored."""
    if hasattr(value, "stored_fields"):
        return _NAMES[type(value)], value.stored_fields()
    names = [field.name for field in dataclasses.fields(value) if field.init]
    return _NAMES[type(value)], {name: getattr(value, name) for name in names}


def from_parts(name: str, fields: Mapping[str, Any]) -> Any:
    """The object of a class name and its stored fields. Raises: KeyError: no storable class."""
    kind: Any = _CLASSES[name]
    return getattr(kind, "from_stored", kind)(**fields)


def storable_names() -> tuple[str, ...]:
    return tuple(sorted(_CLASSES))
