//! `polar verify` and `polar drift`: on files, on a server's tasks, and against an engine.

use crate::support::{User, shown};
use polar_record::{
    CallFingerprint, CallMeta, CallRecord, ChainHash, JournalWriter, RecordedSession, SessionHeader,
};
use polar_trajectory::build;
use polar_types::{CallId, Trajectory, TrajectoryStrategy};
use serde_json::{Value, json};
use std::fs;
use std::process::Output;

/// A session's files in a user's folder.
struct Files {
    user: User,
    journal: String,
    session: RecordedSession,
}

impl Files {
    /// Three calls: the second goes on from the first, the third from what the first said, told
    /// otherwise.
    fn new(user: User, engine: &str) -> Self {
        let system = json!({"role": "system", "content": "You fix tests.\nNow it is 10:15."});
        let later = json!({"role": "system", "content": "You fix tests.\nNow it is 10:16."});
        let ask = json!({"role": "user", "content": "Go on."});
        let reply = json!({"role": "assistant", "content": "so"});
        let (prompt, said, tail) = ([300, 301, 302, 303], [400, 401], [310, 311]);
        let first = record(&[system.clone(), ask.clone()], &prompt, &said);
        let second = record(
            &[system, ask.clone(), reply.clone(), ask.clone()],
            &[&prompt[..], &said, &tail].concat(),
            &[410, 411, 412],
        );
        let third = record(
            &[later, ask.clone(), reply, ask],
            &[&prompt[..2], &[350], &said, &tail].concat(),
            &[420],
        );
        let mut calls = [first, second, third];
        score(engine, &mut calls);
        Self::of(user, &calls)
    }

    fn of(user: User, calls: &[CallRecord]) -> Self {
        let journal = user.path("session.journal");
        let header = SessionHeader {
            session_id: "fix-s0".parse().unwrap(),
            task_id: "fix".parse().unwrap(),
            group_id: "fix".parse().unwrap(),
            attempt: 1,
            epoch: 1,
            created_at_ms: 0,
            engine: Value::Null,
            rules: Default::default(),
        };
        let mut writer = JournalWriter::create(&journal, &header).unwrap();
        for call in calls {
            let index = writer.append_call(call).unwrap();
            writer.append_delivery(index, true).unwrap();
        }
        writer.seal().unwrap();
        let session = RecordedSession::read(&journal).unwrap();
        Self { user, journal: journal.to_str().unwrap().to_owned(), session }
    }

    fn built(&self, strategy: TrajectoryStrategy) -> Trajectory {
        build(&self.session, strategy, Some(1.0)).trajectory
    }

    fn file(&self, name: &str, trajectory: &Trajectory) -> String {
        let path = self.user.path(name);
        fs::write(&path, serde_json::to_string(trajectory).unwrap()).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn record(messages: &[Value], prompt: &[u32], sampled: &[u32]) -> CallRecord {
    CallRecord {
        meta: CallMeta {
            call_id: CallId::of_index(0),
            dialect: "chat".to_owned(),
            stream: true,
            model: "policy".to_owned(),
            started_at_ms: 0,
            duration_ms: 0,
            sampled_tokens: sampled.len() as u64,
            prompt_tokens: prompt.len() as u64,
            cached_tokens: None,
            finish_reason: "stop".to_owned(),
            engine_finish: "stop".to_owned(),
            weight_versions: Vec::new(),
            sampling: json!({}),
            logprob_mode: "raw".to_owned(),
            extra: Default::default(),
            error: None,
            headers: Default::default(),
            fingerprint: None,
        },
        messages: messages.to_vec(),
        tools: None,
        reply: json!({"role": "assistant", "content": "so"}),
        prompt_ids: Some(prompt.to_vec()),
        sampled_ids: Some(sampled.to_vec()),
        logprobs: vec![Some(-1.0); sampled.len()],
    }
}

/// Gives each call the logprobs that the engine has for it.
fn score(engine: &str, calls: &mut [CallRecord]) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = polar_engine::connect(engine, Default::default()).await.unwrap();
        for call in calls {
            let (prompt, sampled) =
                (call.prompt_ids.clone().unwrap(), call.sampled_ids.clone().unwrap());
            let whole = [&prompt[..], &sampled[..]].concat();
            let scored = engine.tokens().unwrap().score(&whole, prompt.len()).await.unwrap();
            call.logprobs = scored[prompt.len()..].to_vec();
        }
    });
}

fn parsed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", shown(output)))
}

#[test]
fn files_are_verified_and_what_is_wrong_is_said_with_what_it_means() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let files = Files::new(user, &engine);
    let verify = |targets: &[&str]| files.user.run(&[&["verify"], targets].concat());

    let alone = verify(&[&files.journal]);
    let said = shown(&alone);
    assert!(alone.status.success(), "{said}");
    assert!(said.contains("3 calls, 2 traces, 6 of 6 sampled tokens trained"), "{said}");
    assert!(said.contains("built from its journal in every layout"), "{said}");

    for strategy in [
        TrajectoryStrategy::PerRequest,
        TrajectoryStrategy::PrefixMerging,
        TrajectoryStrategy::PrefixTree,
    ] {
        let file = files.file("whole.json", &files.built(strategy));
        let output = verify(&[&file, &files.journal]);
        assert!(output.status.success(), "{}", shown(&output));
        let found = parsed(&verify(&[&file, &files.journal, "--json"]));
        assert_eq!(found["sessions"][0]["held_against"], "journal", "{found}");
        assert_eq!((&found["checked"], &found["violated"]), (&json!(1), &json!(0)), "{found}");
        let itself = shown(&verify(&[&file]));
        assert!(itself.contains("held against itself only"), "{itself}");
        assert!(itself.contains("note: without its journal"), "{itself}");
    }

    let mut changed = files.built(TrajectoryStrategy::PrefixMerging);
    changed.traces[0].response_ids[3] ^= 1;
    let file = files.file("changed.json", &changed);
    let output = verify(&[&file, &files.journal]);
    let said = shown(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let what = "fix-s0: VIOLATED";
    assert!(said.contains(what) && said.contains("1 of 1 sessions are not what"), "{said}");
    let where_it_is = "promise 2, context truth: trace 0: the context of call c00001 is not what \
                       the engine had, from position 7 on";
    assert!(said.contains(where_it_is) && said.contains("→ the tokens behind it"), "{said}");
    // Without the journal that cannot be seen, but a mask that fits no logprob can.
    assert!(verify(&[&file]).status.success());
    changed.traces[0].loss_mask[0] = 0;
    let output = verify(&[&files.file("changed.json", &changed), "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
    assert_eq!(parsed(&output)["sessions"][0]["violation"]["promise"], 3);

    let nothing = verify(&[files.user.path("tmp").to_str().unwrap()]);
    assert_eq!(nothing.status.code(), Some(1), "{}", shown(&nothing));
}

#[test]
fn promise_2_a_merged_trace_scores_as_its_calls_did_and_another_context_does_not() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let files = Files::new(user, &engine);
    let rescore = |targets: &[&str]| {
        let engine = ["--json", "--rescore=1", "--engine", &engine];
        let output = files.user.run(&[&["verify"], &engine[..], targets].concat());
        assert!(output.status.success(), "{}", shown(&output));
        parsed(&output)["rescored"].clone()
    };
    for strategy in [TrajectoryStrategy::PrefixMerging, TrajectoryStrategy::PrefixTree] {
        let whole = files.file("whole.json", &files.built(strategy));
        let found = rescore(&[&whole, &files.journal]);
        assert_eq!((&found["traces"], &found["untold"]), (&json!(2), &json!(0)), "{found}");
        assert_eq!(found["merged"], json!({"tokens": 6, "mean": 0.0, "max": 0.0}));
        assert_eq!(found["single"], found["merged"]);
        let tokens = |part: &str| found["parts"][part]["tokens"].clone();
        assert_eq!(tokens("first call"), 2, "{found}");
        assert_eq!(tokens("behind merged context"), 3, "{found}");
        assert_eq!(tokens("after a fork, history_rewritten"), 1, "{found}");
    }
    let mut other = files.built(TrajectoryStrategy::PrefixMerging);
    other.traces[0].response_ids[2] += 1;
    let found = rescore(&[&files.file("other.json", &other)]);
    assert_eq!(found["parts"]["first call"]["max"], 0.0, "{found}");
    let behind = found["parts"]["behind merged context"]["max"].as_f64().unwrap();
    assert!(behind > 0.01, "{found}");
    let other = files.file("other.json", &other);
    for (most, code) in [("0.001", 1), ("100", 0)] {
        let most = ["verify", &other, "--rescore=1", "--max-delta", most, "--engine", &engine];
        let output = files.user.run(&most);
        assert_eq!(output.status.code(), Some(code), "{}", shown(&output));
    }
    let half = files.user.run(&["verify", &files.journal, "--rescore=0.5", "--engine", &engine]);
    let said = shown(&half);
    assert!(said.contains("1 trace scored again") && said.contains("whole traces"), "{said}");
}

/// An engine scores only what it could go on from.
#[test]
fn a_trace_that_fills_the_window_is_scored_but_for_its_end() {
    let user = User::new();
    let (_roomy, roomy) = user.engine();
    let window = ["simulate-engine", "--port=0", "--policy=echo", "--context-window=400"];
    let (_engine, [engine]) = user.start(&window, ["engine simulator at"]);
    let prompt: Vec<u32> = (300..697).collect();
    let ask = json!({"role": "user", "content": "Go on."});
    let mut calls = [record(&[ask], &prompt, &[400, 401, 402])];
    score(&roomy, &mut calls);
    let files = Files::of(user, &calls);
    let scored = ["verify", &files.journal, "--json", "--rescore=1", "--engine", &engine];
    let output = files.user.run(&scored);
    assert!(output.status.success(), "{}", shown(&output));
    let found = &parsed(&output)["rescored"];
    for part in ["merged", "single"] {
        assert_eq!(found[part], json!({"tokens": 2, "mean": 0.0, "max": 0.0}), "{found}");
    }
    assert_eq!((&found["traces"], &found["untold"]), (&json!(1), &json!(1)), "{found}");
}

#[test]
fn a_hash_that_is_not_that_of_the_ids_is_found() {
    let user = User::new();
    let mut first = record(&[json!({"role": "user", "content": "a"})], &[1, 2], &[3]);
    let mut second = record(&[json!({"role": "user", "content": "b"})], &[1, 2, 3, 4], &[5]);
    let chain = ChainHash::step(None, &[1, 2], &[3]);
    let of = |extends, chain| {
        Some(CallFingerprint { template: "t".into(), tokenizer: "k".into(), extends, chain })
    };
    first.meta.fingerprint = of(None, chain);
    let parent = Some(CallId::of_index(0));
    second.meta.fingerprint = of(parent.clone(), ChainHash::step(Some(&chain), &[4], &[5]));
    let files = Files::of(user, &[first.clone(), second.clone()]);
    let right = files.user.run(&["verify", &files.journal]);
    assert!(right.status.success(), "{}", shown(&right));
    assert!(shown(&right).contains("2 hashes right"), "{}", shown(&right));

    second.meta.fingerprint = of(parent, ChainHash::step(Some(&chain), &[4], &[6]));
    let files = Files::of(User::new(), &[first, second]);
    let wrong = files.user.run(&["verify", &files.journal]);
    assert_eq!(wrong.status.code(), Some(1), "{}", shown(&wrong));
    let what = "the ids of call c00001 have another chain hash than its record says";
    assert!(shown(&wrong).contains(what), "{}", shown(&wrong));
}

#[test]
fn drift_says_where_and_why_and_what_would_heal_it() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let files = Files::new(user, &engine);
    let output = files.user.run(&["drift", &files.journal, "--engine", &engine]);
    let said = shown(&output);
    assert!(output.status.success(), "{said}");
    for part in [
        "trace 0: new_lineage: call c00000",
        "trace 1: history_rewritten: call c00002 (main) comes closest to call c00001",
        "both begin with the same 2 tokens; then comes 350 in the place of 302",
        "[300, 301]",
        "message 0 (system) was",
        "a rule under `normalise:`",
        r"part: system, pattern: '(?m)^Now it is .*$\n?'",
        "2 traces: 1 new_lineage, 1 history_rewritten; of these 1 can be healed",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    let found = parsed(&files.user.run(&["drift", &files.journal, "--json", "--engine", &engine]));
    let fork = &found["sessions"][0]["forks"][1];
    assert_eq!(fork["tokens"]["expected"][0], 302, "{found}");
    assert_eq!(fork["advice"]["remedy"], "normalise_rule", "{found}");
    assert!(fork["text"]["before"].is_string(), "{found}");

    let tree = files.file("tree.json", &files.built(TrajectoryStrategy::PrefixTree));
    let alone = shown(&files.user.run(&["drift", &tree]));
    assert!(alone.contains("both begin with the same 2 tokens; then comes 350"), "{alone}");
    assert!(alone.contains("note: without its journal"), "{alone}");
}

const AGENT: &str = r#"
import json, os, urllib.request
messages = [{"role": "user", "content": "hello"}]
for _ in range(1):
    body = json.dumps({"model": "m", "messages": messages}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        messages.append(json.load(answer)["choices"][0]["message"])
    messages.append({"role": "user", "content": "and on"})
"#;

#[test]
fn a_task_on_a_server_is_held_against_the_journals_it_keeps() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let up = ["up", "--port=0", "--proxy-port=0", "--local-isolation=process", "--engine", &engine];
    let (_up, [server]) = user.start(&up, ["control API"]);
    let agent = user.path("agent.py");
    fs::write(&agent, AGENT).unwrap();
    for strategy in ["prefix_merging", "prefix_tree"] {
        let task = user.path("task.json");
        let command = format!("python3 {}", agent.display());
        let text = json!({
            "task_id": strategy, "harness": {"name": "shell", "command": command},
            "runtime": "local", "trajectory_strategy": strategy, "num_samples": 2,
        });
        fs::write(&task, text.to_string()).unwrap();
        let output = user.run(&["run", task.to_str().unwrap(), "--server", &server]);
        let said = shown(&output);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("to train: ") && said.contains("as prefix_tree"), "{said}");
        let output = user.run(&[
            "verify",
            strategy,
            "--server",
            &server,
            "--rescore=1",
            "--engine",
            &engine,
        ]);
        let said = shown(&output);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("2 sessions checked, 0 violated: "), "{said}");
        assert!(said.contains("held against its journal"), "{said}");
        assert!(said.contains("2 traces scored again"), "{said}");
        let drift = shown(&user.run(&["drift", strategy, "--server", &server]));
        assert!(drift.contains("2 traces: 2 new_lineage; of these 0 can be healed"), "{drift}");
    }
    let missing = shown(&user.run(&["verify", "nobody", "--server", &server]));
    assert!(missing.contains("nobody is no file here, and was looked for"), "{missing}");
}

#[test]
fn stored_work_is_graded_again_with_old_and_new_rewards_told() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let up = ["up", "--port=0", "--proxy-port=0", "--local-isolation=process", "--engine", &engine];
    let (_up, [server]) = user.start(&up, ["control API"]);
    let agent = user.path("agent.py");
    fs::write(&agent, AGENT).unwrap();
    let task = user.path("task.json");
    let text = json!({
        "task_id": "t", "runtime": "local", "num_samples": 2,
        "harness": {"name": "shell", "command": format!("python3 {}; echo 42 > answer", agent.display())},
        "evaluator": {"type": "command", "command": "false"},
    });
    fs::write(&task, text.to_string()).unwrap();
    let output = user.run(&["run", task.to_str().unwrap(), "--server", &server]);
    assert!(output.status.success(), "{}", shown(&output));
    let regrade =
        |more: &[&str]| user.run(&[&["regrade", "t", "--server", &server], more].concat());
    let evaluator = user.path("evaluator.yaml");
    fs::write(&evaluator, "type: command\ncommand: grep -q 42 answer\n").unwrap();
    let file = format!("--evaluator={}", evaluator.display());
    let output = regrade(&[&file, "--session=t-s1"]);
    let said = shown(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("t-s1: reward 0 → 1 (revision 2, by command/1+polar."), "{said}");
    assert!(!said.contains("t-s0"), "{said}");
    // Again by the task's own, which a task file has as well.
    let output = regrade(&[&format!("--evaluator={}", task.display())]);
    let said = shown(&output);
    assert!(said.contains("t-s0: reward 0 → 0") && said.contains("t-s1: reward 1 → 0"), "{said}");
    fs::write(&evaluator, "type: command\ncommand: no-such-program-of-tests\n").unwrap();
    let output = regrade(&[&file]);
    let said = shown(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("t-s0: not graded, and left as it was: evaluator.command"), "{said}");
    assert!(said.contains("2 of 2 sessions could not be graded again"), "{said}");
    // What the trajectories are is still what was sampled.
    let output = user.run(&["verify", "t", "--server", &server]);
    assert!(output.status.success(), "{}", shown(&output));
}
