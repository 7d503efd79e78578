"""Refuses YAML that stands for more, or for something else, than a person writes."""

import yaml

MAX_CHARACTERS = 1 << 20
"""Of a file; the largest study has a hundredth of it."""
MAX_VALUES = 20_000
"""Values and keys, those that an alias repeats counted at every place."""
MAX_DEPTH = 20
"""Mappings and lists within each other."""
MAX_KEY_LENGTH = 200
MAX_WHOLE_NUMBER = 2**63
"""Whole numbers beyond it cannot be stored as such, and nothing here counts so far."""

_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")
)


class TooMuch(yaml.MarkedYAMLError):
    """A text is YAML, but not of the kind that is read here; `problem` says why."""

    def __init__(self, problem: str, node: yaml.Node) -> None:
        super().__init__(problem=problem, problem_mark=node.start_mark)


def check_node(root: yaml.Node) -> None:
    """Raises TooMuch for tags, cycles, deep nesting, and aliases that repeat themselves.

    An alias costs nothing in the text, so that a few lines may stand for billions of values
    ("billion laughs"). Each node is weighed once, and its weight counts at every place.
    """
    _, height = _weigh(root, {})
    if height > MAX_DEPTH:
        raise TooMuch(f"values may lie at most {MAX_DEPTH} levels deep", root)


def _weigh(node: yaml.Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Returns how many values a node stands for, and how many levels."""
    if id(node) in known:
        found = known[id(node)]
        if found is None:
            raise TooMuch("a value holds itself", node)
        return found
    if node.tag not in _PLAIN_TAGS:
        raise TooMuch(f"the tag {node.tag!r} is for code and special values; leave it out", node)
    # None while its own values are looked at: met again then, it holds itself.
    known[id(node)] = None
    inner = [_weigh(child, known) for child in _children(node)]
    weight = 1 + sum(weight for weight, _ in inner)
    if weight > MAX_VALUES:
        raise TooMuch(f"it stands for more than {MAX_VALUES:,} values", node)
    result = weight, 1 + max((height for _, height in inner), default=0)
    known[id(node)] = result
    return result


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and len(key.value) > MAX_KEY_LENGTH:
                raise TooMuch(f"a key may have at most {MAX_KEY_LENGTH} characters", key)
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
