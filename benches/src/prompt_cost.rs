//! What the prompt of one more turn costs in token mode, at contexts of growing length: put behind
//! what was sampled, against rendering and tokenizing the whole conversation anew.
//!
//! Both arms make the prompt of the same request, in turns: the result of a tool behind a conversation
//! of calls and results. Every repeat has another result, so that nothing of it is known from before.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use jiff::civil::DateTime;
use polar_engine::ModelFiles;
use polar_tokens::prompt::{Basis, Conversation, PromptMemory, PromptRenderer};
use polar_tokens::template::{ChatTemplate, Preparation};
use polar_tokens::tokenizer::Tokenizer;
use polar_types::HistoryPolicy;
use serde_json::{Map, Value, json};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug, Parser)]
struct Options {
    /// Folder with a model's tokenizer.json and chat template.
    model_files: PathBuf,
    /// Tokens of the conversation before the turn.
    #[arg(long, value_delimiter = ',', default_value = "1000,32000,128000")]
    contexts: Vec<usize>,
    /// Turns measured at each length.
    #[arg(long, default_value_t = 20)]
    repeats: usize,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let files = ModelFiles::read(&options.model_files)?;
    let tokenizer = Arc::new(Tokenizer::from_json(&files.tokenizer_json)?);
    let template = ChatTemplate::new(files.templates)?;
    let renderer =
        PromptRenderer::new(template, tokenizer, Preparation::Vllm, files.stop_token_ids);
    let mut out = std::io::stdout().lock();
    writeln!(out, "| context | new | behind what was sampled, ms | rendered anew, ms | ratio |")?;
    writeln!(out, "|---|---|---|---|---|")?;
    for context in options.contexts {
        let row = measure(&renderer, context, options.repeats)?;
        writeln!(out, "{row}")?;
    }
    Ok(())
}

/// About a hundred words of prose and code, another for each number.
fn passage(number: usize) -> String {
    let line =
        |at: usize| format!("    let sum_{number}_{at} = read(\"src/part{at}.rs\")? + {at};\n");
    format!(
        "Step {number}: the test still fails, since the parser takes the second argument for a path. \
         I look at the function that reads it.\n```rust\n{}```\nGrüße, 漢字 {number}.",
        (0..8).map(line).collect::<String>()
    )
}

/// A call of a tool, as a message and as the model would write it, and its result.
fn exchange(number: usize) -> (Value, String, Value) {
    let id = format!("call{number:05}");
    let arguments = json!({"path": format!("src/part{number}.rs")}).to_string();
    let sampled =
        format!("<tool_call>\n{{\"name\": \"read\", \"arguments\": {arguments}}}\n</tool_call>");
    let call = json!({"role": "assistant", "content": "", "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "read", "arguments": arguments}},
    ]});
    let result = json!({"role": "tool", "tool_call_id": id, "content": passage(number)});
    (call, sampled, result)
}

fn measure(renderer: &PromptRenderer, context: usize, repeats: usize) -> Result<String> {
    let options = Map::new();
    let mut memory = PromptMemory::default();
    let mut messages: Vec<Value> = vec![json!({"role": "user", "content": passage(0)})];
    let stop = *renderer.stop_ids().first().context("the model has no stop token")?;
    let mut length = 0;
    // A call for every turn, as agents make them.
    for number in 1.. {
        let conversation = of(&messages, &options);
        let plan = memory.plan(renderer, &conversation, HistoryPolicy::Sampled)?;
        let (call, sampled, result) = exchange(number);
        let mut sampled = renderer.tokenizer().encode(&sampled)?;
        sampled.push(stop);
        memory.remember(&plan, &call, &sampled, number as u32);
        messages.push(call);
        length = plan.ids.len() + sampled.len();
        if length >= context {
            break;
        }
        messages.push(result);
    }
    let (mut behind, mut anew) = (Vec::new(), Vec::new());
    let mut new_tokens = 0;
    for repeat in 0..repeats {
        let (_, _, result) = exchange(10_000 + repeat);
        messages.push(result);
        let conversation = of(&messages, &options);
        let started = Instant::now();
        let plan = memory.plan(renderer, &conversation, HistoryPolicy::Sampled)?;
        behind.push(started.elapsed());
        ensure!(matches!(plan.basis, Basis::Call { .. }), "the turn was not known again");
        new_tokens = plan.ids.len() - length;
        let started = Instant::now();
        let whole = renderer.prompt(&conversation)?;
        anew.push(started.elapsed());
        ensure!(whole.len() > length / 2, "the whole conversation was not rendered");
        messages.pop();
    }
    let (behind, anew) = (median(&mut behind), median(&mut anew));
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(format!(
        "| {length} | {new_tokens} | {:.3} | {:.3} | {:.0} |",
        millis(behind),
        millis(anew),
        anew.as_secs_f64() / behind.as_secs_f64(),
    ))
}

fn of<'a>(messages: &'a [Value], options: &'a Map<String, Value>) -> Conversation<'a> {
    Conversation { messages, tools: &[], options, now: DateTime::default() }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
