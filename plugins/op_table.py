"""Writes the C++ table of instructions, runtime/core/plan/op_table.h, from the plugins' records.

python -m tensorwright.plugins.op_table        writes the file; run it after a change of a record
"""

from __future__ import annotations

import sys
from pathlib import Path

from tensorwright.ir.ops import instructions
from tensorwright.ir.records import Instruction, Operand

PATH = "runtime/core/plan/op_table.h"

HEADER = """\
// The instructions of target cpu: numbers, operands, checks and makers. Generated from the records in
// plugins/ by
//   python -m tensorwright.plugins.op_table
// Change a record (INSTRUCTION in plugins/<op>/*.py) and run that; a test compares.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PLAN_OP_TABLE_H_
#define TENSORWRIGHT_RUNTIME_CORE_PLAN_OP_TABLE_H_

#include <cstdint>
#include <memory>

namespace tensorwright {

class InstructionCheck;
class Operation;
struct Instruction;
struct OpContext;

// clang-format off
"""

FOOTER = """\
// clang-format on

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PLAN_OP_TABLE_H_
"""


def render() -> str:
    """Returns the text of the header."""
    records = [record for record in instructions().values() if not record.shares_number_of]
    return "\n".join(
        [
            HEADER,
            *_enum(records),
            *_numbers(records),
            *_functions(records),
            *_rows(records),
            *_sharings(records),
            FOOTER,
        ]
    )


def _constant(record: Instruction) -> str:
    return "k" + "".join(word.capitalize() for word in record.name.split("_"))


def _names(operands: tuple[Operand, ...]) -> str:
    return ", ".join(operand.name + "?" * operand.optional for operand in operands) or "-"


def _counts(operands: tuple[Operand, ...]) -> str:
    return f"{sum(not operand.optional for operand in operands)}, {len(operands)}"


def _stored(record: Instruction) -> tuple[str, str]:
    """Returns the comment's text about ints and floats."""
    if record.encode is not None:
        return "encoded", "encoded"
    return ", ".join(record.ints) or "-", ", ".join(record.floats) or "-"


def _enum(records: list[Instruction]) -> list[str]:
    lines = ["// Numbers are stored; none is used again. The comment gives in | weights | out | ints | floats."]
    lines.append("enum class Op : uint32_t {")
    for record in records:
        columns = (_names(record.ins), _names(record.weights), _names(record.outs), *_stored(record))
        lines.append(f"  {_constant(record)} = {record.number},  // {' | '.join(columns)}")
    return [*lines, "};", ""]


def _numbers(records: list[Instruction]) -> list[str]:
    lines = ["// Numbers of definitions, which the instructions' own code shares."]
    for record in records:
        for name, value in record.numbers.items():
            words = "".join(word.capitalize() for word in name.split("_"))
            lines.append(f"inline constexpr int32_t {_constant(record)}{words} = {value};")
    return [*lines, ""]


def _functions(records: list[Instruction]) -> list[str]:
    """Declares the two functions of each instruction, which plugins/<op>/instruction.cc defines."""
    lines = [
        "// Defined in plugins/<op>/instruction.cc. A check throws if the instruction breaks a rule of its op; a maker",
        "// takes only what was checked.",
        "using InstructionRule = void(const InstructionCheck&);",
        "using OperationMaker = std::unique_ptr<Operation>(const Instruction&, const OpContext&);",
    ]
    for record in records:
        lines.append(f"InstructionRule check_{record.name};")
        lines.append(f"OperationMaker make_{record.name};")
    return [*lines, ""]


def _rows(records: list[Instruction]) -> list[str]:
    lines = [
        "// How many operands an op takes and how many attributes it reads. Required operands come first.",
        "struct OpRow {",
        "  Op op;",
        "  const char* name;",
        "  int ins_required, ins, weights_required, weights, outs_required, outs, ints, floats;",
        "  InstructionRule* check;",
        "  OperationMaker* make;",
        "};",
        "inline constexpr OpRow kOpTable[] = {",
    ]
    for record in records:
        counts = ", ".join(map(_counts, (record.ins, record.weights, record.outs)))
        ints, floats = (8, 4) if record.encode is not None else (len(record.ints), len(record.floats))
        lines.append(
            f'  {{Op::{_constant(record)}, "{record.name}", {counts}, {ints}, {floats}, '
            f"check_{record.name}, make_{record.name}}},"
        )
    return [*lines, "};", ""]


def _sharings(records: list[Instruction]) -> list[str]:
    lines = [
        "// out[`out`] may be written over in[`in`] if in[`without`] is absent (-1: always), for the kernel reads and",
        "// writes them element by element in one order.",
        "struct OpSharing {",
        "  Op op;",
        "  int out, in, without;",
        "};",
        "inline constexpr OpSharing kOpSharings[] = {",
    ]
    for record in records:
        ins, outs = ([o.name for o in operands] for operands in (record.ins, record.outs))
        for rule in record.in_place:
            without = ins.index(rule.without) if rule.without else -1
            for name in rule.over:
                places = f"{outs.index(rule.result)}, {ins.index(name)}, {without}"
                lines.append(f"  {{Op::{_constant(record)}, {places}}},  // {rule.result} over {name}")
    return [*lines, "};", ""]


def main() -> None:
    """Writes the file below the current folder, which must be the repository's root."""
    path = Path(PATH)
    if not path.parent.is_dir():
        sys.exit(f"there is no {path.parent} here: run this at the root of the repository")
    path.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    import tensorwright.plugins.registry  # noqa: F401  (this import fills the table)

    main()
