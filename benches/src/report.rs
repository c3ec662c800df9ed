//! Rows, medians over repeats, and the table.

use crate::arms::Arm;
use crate::load::{self, Case, Timing};
use anyhow::Result;
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// One measurement of one arm in one case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    repeat: u32,
    case: Case,
    arm: &'static str,
    first_ms: f64,
    total_ms: f64,
    cpu_ms: f64,
    kept_kb: f64,
}

impl Row {
    pub(crate) async fn measure(repeat: u32, case: &Case, arm: &Arm) -> Result<Self> {
        // Warm: connections, caches, the canned reply.
        load::run(arm, case, case.concurrency.max(10)).await?;
        let before = arm.usage()?;
        let timings = load::run(arm, case, case.calls).await?;
        let after = arm.usage()?;
        let calls = case.calls as f64;
        Ok(Self {
            repeat,
            case: *case,
            arm: arm.name,
            first_ms: median(timings.iter().map(|t: &Timing| t.first.as_secs_f64() * 1e3)),
            total_ms: median(timings.iter().map(|t| t.total.as_secs_f64() * 1e3)),
            cpu_ms: (after.cpu_ms - before.cpu_ms) / calls,
            kept_kb: (after.resident_kb - before.resident_kb) / calls,
        })
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[length / 2],
        length => (values[length / 2 - 1] + values[length / 2]) / 2.0,
    }
}

/// Prints medians over the repeats, each arm against `direct`.
pub(crate) fn print(
    rows: &[Row],
    cases: &[Case],
    arms: &[Arm],
    json_path: Option<&Path>,
) -> Result<()> {
    let mut text = String::new();
    writeln!(
        text,
        "| prompt | streams | mode | arm | first ms (+, ×) | total ms (+, ×) | + per token µs | CPU ms/call | kept kB/call |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|")?;
    for case in cases {
        let of = |arm: &str, value: fn(&Row) -> f64| {
            median(rows.iter().filter(|r| r.case == *case && r.arm == arm).map(value))
        };
        let (first, total) = (of("direct", |r| r.first_ms), of("direct", |r| r.total_ms));
        for arm in arms {
            let (arm_first, arm_total) =
                (of(arm.name, |r| r.first_ms), of(arm.name, |r| r.total_ms));
            let added_after_first = (arm_total - arm_first) - (total - first);
            writeln!(
                text,
                "| {} | {} | {} | {} | {:.2} ({:+.2}, {:.2}) | {:.2} ({:+.2}, {:.2}) | {:.1} | {:.3} | {:.1} |",
                case.prompt,
                case.concurrency,
                if case.stream { "stream" } else { "unary" },
                arm.name,
                arm_first,
                arm_first - first,
                arm_first / first,
                arm_total,
                arm_total - total,
                arm_total / total,
                added_after_first * 1e3 / case.sampled as f64,
                of(arm.name, |r| r.cpu_ms),
                of(arm.name, |r| r.kept_kb),
            )?;
        }
    }
    std::io::stdout().lock().write_all(text.as_bytes())?;
    if let Some(path) = json_path {
        let mut lines = String::new();
        for row in rows {
            let line = json!({
                "repeat": row.repeat, "prompt": row.case.prompt, "sampled": row.case.sampled,
                "concurrency": row.case.concurrency, "stream": row.case.stream, "arm": row.arm,
                "first_ms": row.first_ms, "total_ms": row.total_ms, "cpu_ms": row.cpu_ms,
                "kept_kb": row.kept_kb,
            });
            writeln!(lines, "{line}")?;
        }
        std::fs::write(path, lines)?;
    }
    Ok(())
}
