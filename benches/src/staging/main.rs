//! What staging pays: the same sessions on one node, with every stage in one slot and with
//! stages of their own.
//!
//! The engine is the simulator, which gives tokens at a pace; a node's run slots are what it
//! can serve at a time. Sessions are real: local sandboxes by bubblewrap, set-up steps, an
//! agent that calls its model and uses its tools, and a grader in a sandbox of its own. How
//! long each part takes is drawn once, from a seed, so that every arm has the same work.
//! Arms take turns within each repeat.
//!
//! Staging is switched by the slots of the node alone, which `polar gateway --slots` sets too.

mod measure;
mod node;
mod workload;

use anyhow::Result;
use clap::Parser;
use measure::Measured;
use node::Node;
use polar_types::Slots;
use std::io::Write as _;
use workload::Workload;

#[derive(Debug, Parser)]
struct Options {
    /// Sessions of each arm.
    #[arg(long, default_value_t = 40)]
    sessions: u32,
    /// Run slots.
    #[arg(long, default_value_t = 4)]
    concurrency: u32,
    /// Times that all arms are measured.
    #[arg(long, default_value_t = 2)]
    repeats: u32,
    /// Of what is drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Median seconds of the steps of `runtime.prepare`.
    #[arg(long, default_value_t = 2.0)]
    prepare: f64,
    /// Median seconds of the evaluator.
    #[arg(long, default_value_t = 1.5)]
    grade: f64,
    /// Calls of each session.
    #[arg(long, default_value_t = 3)]
    calls: u32,
    /// Median tokens of a call.
    #[arg(long, default_value_t = 60.0)]
    tokens: f64,
    /// Tokens per second of each reply.
    #[arg(long, default_value_t = 30.0)]
    pace: f64,
    /// Median seconds of what the agent does between two calls.
    #[arg(long, default_value_t = 0.3)]
    tools: f64,
}

/// The arms: what each is called, and its slots.
fn arms(run: u32) -> [(&'static str, Slots); 3] {
    let staged = Slots::of_concurrency(run);
    [
        ("off", Slots { prepare: 0, ready: 0, run, grade: 0, warm: 0 }),
        ("on, graders made when needed", Slots { warm: 0, ..staged }),
        ("on", staged),
    ]
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let workload = Workload::draw(&options);
    let mut measured: Vec<(&str, Vec<Measured>)> =
        arms(options.concurrency).map(|(name, _)| (name, Vec::new())).into();
    for repeat in 0..options.repeats {
        for (index, (name, slots)) in arms(options.concurrency).into_iter().enumerate() {
            let node = Node::start(slots, options.pace).await?;
            let run = node.run(&workload).await?;
            let this = Measured::of(&run, options.concurrency);
            note(&format!("repeat {repeat}, {name}: {this:?}"))?;
            measured[index].1.push(this);
        }
    }
    let mut out = std::io::stdout().lock();
    out.write_all(measure::table(&measured).as_bytes())?;
    Ok(())
}

fn note(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stderr(), "{text}")?)
}
