"""Evaluates equations from their text, so that the printed equation is the calculated one."""

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping

_OPERATORS: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Mapping[str, Callable[..., float]] = {"max": max, "min": min, "sqrt": math.sqrt, "exp": math.exp}


def evaluate(equation: str, numbers: Mapping[str, float]) -> float:
    """Returns the value of an equation of + - * / ** max min sqrt exp over names."""
    return _value(_parsed(equation), numbers)


@functools.cache
def _parsed(equation: str) -> ast.expr:
    return ast.parse(equation, mode="eval").body


def _value(node: ast.expr, numbers: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return numbers[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, numbers)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, numbers), _value(right, numbers))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_value(arg, numbers) for arg in args))
    raise ValueError(f"not an equation: {ast.unparse(node)}")
