//! What the sessions do, drawn once for all arms.

use crate::Options;
use anyhow::{Result, anyhow};
use polar_session::HarnessAdapter;
use polar_types::{Epoch, GroupId, Known, Lease, SessionId, TaskRequest};
use serde_json::{Value, json};

/// How far times of a kind lie from each other: the standard deviation of their logarithms. Nine
/// of ten are within a factor of 2.7 of the median.
const SPREAD: f64 = 0.6;

const AGENT: &str = include_str!("agent.py");

pub(crate) struct Workload {
    tasks: Vec<Value>,
}

impl Workload {
    pub(crate) fn draw(options: &Options) -> Self {
        let mut draws = Draws(options.seed);
        let mut task = |_| {
            let prepare = draws.around(options.prepare);
            let grade = draws.around(options.grade);
            let turns: Vec<_> = (0..options.calls)
                .map(|_| json!([draws.around(options.tokens).ceil(), draws.around(options.tools)]))
                .collect();
            json!({
                "instruction": json!({"turns": turns}).to_string(),
                "harness": {"name": "shell", "command": "python3 agent.py"},
                "runtime": {"type": "local", "prepare": [
                    {"type": "write_file", "path": "agent.py", "content": AGENT},
                    {"type": "exec", "command": format!("sleep {prepare:.3}")},
                ]},
                "evaluator": {
                    "type": "command",
                    "command": format!("sleep {grade:.3}; test -e done"),
                },
            })
        };
        Self { tasks: (0..options.sessions).map(&mut task).collect() }
    }

    pub(crate) fn leases(&self) -> Result<Vec<Lease>> {
        self.tasks.iter().enumerate().map(|(number, task)| lease(number, task.clone())).collect()
    }
}

fn lease(number: usize, task: Value) -> Result<Lease> {
    let request: TaskRequest = serde_json::from_value(task)?;
    let known = Known {
        harnesses: HarnessAdapter::names().into_iter().map(str::to_owned).collect(),
        default_image: None,
        ..Known::default()
    };
    let id = format!("t{number}").parse().map_err(|error| anyhow!("{error}"))?;
    let task = request.resolve(id, &known).map_err(|problems| anyhow!("{problems:?}"))?;
    Ok(Lease {
        session_id: SessionId::of_sample(&task.task_id, 0),
        attempt: 1,
        epoch: Epoch(1),
        sample_index: 0,
        group_id: GroupId::from(&task.task_id),
        task,
        regrade: None,
    })
}

/// Numbers from a seed (SplitMix64).
struct Draws(u64);

impl Draws {
    /// Log-normal, with this median.
    fn around(&mut self, median: f64) -> f64 {
        // Box and Muller's way to a normal draw.
        let (radius, angle) = (self.unit(), self.unit());
        let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
        median * (SPREAD * normal).exp()
    }

    /// Above 0, up to 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((mixed >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}
