"""Writes the report of a soak as a page of Markdown."""

from __future__ import annotations

from typing import Any

SHOWN_FAULTS = 40
COUNTERS = (
    "steps_total", "preemptions_total", "kv_evictions_total", "tier_memory_hits_total", "tier_disk_hits_total",
    "tier_disk_evictions_total", "tier_disk_dropped_total", "tier_disk_failed_writes_total", "prefix_fetches_total",
    "guided_forced_tokens_total", "draft_tokens_accepted_total", "deadlines_missed_total", "steps_rolled_back_total",
)  # fmt: skip


def summary(report: dict[str, Any]) -> str:
    """Returns the page: what ended how, what was injected, what a life held, and what does not hold."""
    names = sorted({end for ends in report["ends"].values() for end in ends})
    lines = [
        "## Soak\n",
        f"{report['requests']} jobs, {report['http_requests']} HTTP requests, {report['clients']} clients at once, "
        f"{report['seconds']:.0f} s; {report['machine']['cpu']}, {report['machine']['cores']} cores; {report['date']}.",
        f"{report['compared']} survivors were asked for again, alone.\n",
        "| kind | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for kind, ends in report["ends"].items():
        lines.append(f"| {kind} | " + " | ".join(str(ends.get(name, 0)) for name in names) + " |")
    lines.append("\nInjected: " + ", ".join(f"{name}: {count}" for name, count in report["faults"].items()) + ".")
    lines.append(f"Engines replaced by the watchdog: {report['engines_replaced']}.")
    lines.append("Clients: " + ", ".join(f"{name}: {count}" for name, count in report["manners"].items()) + ".\n")
    for life, held in report["held"].items():
        sizes = ", ".join(f"{one['memory'] / 2**20:.0f}" for one in held)
        files, threads = ([one[name] for one in held] for name in ("files", "threads"))
        found = report["metrics"][life]
        counters = ", ".join(f"{name}: {found.get(f'tensorwright_{name}', 0):.0f}" for name in COUNTERS)
        lines.append(f"* {life}: anonymous MiB {sizes}; files {files}; threads {threads}; {counters}; "
                     f"exit code {report['exits'].get(life)}.")  # fmt: skip
    wrong = report["wrong"]
    if not wrong:
        return "\n".join([*lines, "\nEverything holds.\n"])
    shown = [f"* {fault[:600]}" for fault in wrong[:SHOWN_FAULTS]]
    return "\n".join([*lines, f"\n**{len(wrong)} things do not hold:**\n", *shown, ""])
