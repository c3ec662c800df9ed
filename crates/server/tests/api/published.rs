//! The published Polar's API, spoken as its clients speak it.

use crate::support::{DEADLINE, Fixture, json_of, report_of};
use axum::Router;
use axum::extract::State;
use http::{HeaderMap, Method, StatusCode};
use polar_server::EVENT_ID_HEADER;
use polar_types::{
    EvaluatorSpec, GradingSandbox, Lease, Network, Outcome, PrepareStep, RuntimeKind, StageTimes,
};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// The smallest task of that API, with these fields changed.
fn task(changes: Value) -> Value {
    let mut task = json!({
        "task_id": "fix-42",
        "instruction": "Fix the test.",
        "agent": {"harness": "shell", "custom_shell": {"command": "python3 agent.py"}},
    });
    task.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    task
}

async fn submit(server: &Fixture, changes: Value) -> (StatusCode, Value) {
    server.post("/rollout/task/submit", &task(changes)).await
}

async fn accepted(server: &Fixture, changes: Value) -> Lease {
    let (status, answer) = submit(server, changes).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer, json!({"task_id": "fix-42", "status": "running"}));
    server.lease_of_any().await
}

fn trace(response_logprobs: Value) -> Value {
    json!({
        "prompt_ids": [1, 2], "response_ids": [3, 4, 5], "loss_mask": [1, 0, 1],
        "response_logprobs": response_logprobs,
        "prompt_messages": [{"role": "user", "content": "a\nb"}],
        "response_messages": [{"role": "assistant", "content": "c"}],
        "finish_reason": "stop", "reward": 0.5,
        "weight_versions": [{"start": 0, "end": 1}, {"start": 2, "end": 3}],
        "lineage": {"role": "main", "fork": {"cause": "new_lineage", "shared_tokens": 0}},
        "calls": ["c00000"], "rollout_id": "fix-42-s0", "group_id": "fix-42",
        "siblings": 2, "loss_weight": 0.5, "sampling": {"temperature": 1.0},
    })
}

fn trajectory(traces: &[Value]) -> String {
    json!({
        "session_id": "fix-42-s0", "task_id": "fix-42", "group_id": "fix-42",
        "strategy": "per_request", "reward": 0.5, "traces": traces,
        "tokens": {"sampled": 4, "trained": 4, "untrained": {}, "context": 2},
        "forks": {"new_lineage": 1},
    })
    .to_string()
}

async fn end(server: &Fixture, lease: &Lease, outcome: Outcome, traces: &[Value]) {
    let artifact = server.upload("trajectory.json", trajectory(traces)).await;
    let mut report = report_of(lease, "n1", outcome);
    report.artifacts = vec![artifact];
    report.times = StageTimes {
        prepare_seconds: 1.5,
        run_seconds: 2.25,
        grade_seconds: 0.5,
        ..StageTimes::default()
    };
    server.report(&report).await;
}

#[tokio::test]
async fn a_task_is_submitted_polled_and_told_of_in_the_published_words() {
    let server = Fixture::start().await;
    let lease = accepted(&server, json!({"num_samples": 2, "metadata": {"step": 7}})).await;
    let traces = [trace(json!([-0.5, null, -0.25])), trace(json!([-0.5, null, null]))];
    end(&server, &lease, Outcome::Completed, &traces).await;

    let (status, told) = server.get("/rollout/task/fix-42").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(told["status"], "running");
    assert_eq!((&told["total_sessions"], &told["completed_sessions"]), (&json!(2), &json!(1)));
    assert_eq!(told["result_paths"], json!([]));
    let result = &told["results"][0];
    assert_eq!(result["status"], "COMPLETED");
    assert_eq!(result["task_id"], "fix-42");
    assert_eq!(result["metadata"], json!({"step": 7}));
    assert_eq!(result["node_id"], "n1");
    let timing = json!({
        "register_to_init_queue_ms": 0, "init_ms": 1500, "run_ms": 2250, "postrun_ms": 500,
    });
    assert_eq!(result["timing"], timing);
    let traces = result["trajectory"]["traces"].as_array().unwrap();
    assert_eq!(traces[0]["prompt_ids"], json!([1, 2]));
    assert_eq!(traces[0]["loss_mask"], json!([1, 0, 1]));
    assert_eq!(traces[0]["response_logprobs"], json!([-0.5, 0.0, -0.25]));
    assert_eq!(traces[0]["prompt_messages"], json!([{"role": "user", "content": "a\nb"}]));
    assert_eq!(traces[0]["tools"], Value::Null);
    assert_eq!(traces[0]["reward"], 0.5);
    assert_eq!(traces[0]["metadata"]["rollout_id"], "fix-42-s0");
    // A sampled token without a logprob: no list at all rather than a number that none gave.
    assert_eq!(traces[1]["response_logprobs"], Value::Null);

    let second = server.lease_of_any().await;
    let failed = Outcome::Failed {
        side: polar_types::Side::Harness,
        class: polar_types::ErrorClass::Internal,
        message: "the agent crashed".to_owned(),
    };
    server.report(&report_of(&second, "n1", failed)).await;
    let (_, told) = server.get("/rollout/task/fix-42").await;
    assert_eq!(told["status"], "completed");
    assert_eq!(told["results"][1]["status"], "ERROR");
    assert_eq!(told["results"][1]["error"], "the agent crashed");
    assert_eq!(told["results"][1]["trajectory"]["traces"], json!([]));

    let (_, listed) = server.get("/tasks?status=completed&since=2026-01-01T00:00:00Z").await;
    assert_eq!(listed["tasks"][0]["task_id"], "fix-42");
    assert_eq!(listed["tasks"][0]["errored_sessions"], 1);
    assert_eq!(listed["tasks"][0]["mean_reward"], 1.0);
    let (_, sessions) = server.get("/tasks/fix-42/sessions").await;
    assert_eq!(sessions["sessions"][1]["status"], "ERROR");
    let (_, overview) = server.get("/rollout/status").await;
    assert_eq!(overview["tasks"], json!({"fix-42": "completed"}));
    assert_eq!(overview["pipeline"], json!({"pending_sessions": 0}));
    assert_eq!(overview["nodes"]["nodes"][0]["node_id"], "n1");
    assert_eq!(server.get("/health").await.1, json!({"status": "ok", "nodes": 1}));
}

type Received = Vec<(HeaderMap, Value)>;

/// A receiver that takes only what says its length, as simple ones do, and fails at first.
async fn receiver() -> (String, watch::Receiver<Received>) {
    let (sender, received) = watch::channel(Vec::new());
    let take = |State(sender): State<watch::Sender<Received>>, headers: HeaderMap, body: String| async move {
        let length: usize = headers["content-length"].to_str().unwrap().parse().unwrap();
        assert_eq!(length, body.len());
        sender.send_modify(|all| all.push((headers, serde_json::from_str(&body).unwrap())));
        match sender.borrow().len() {
            1 => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::OK,
        }
    };
    let app = Router::new().route("/told", axum::routing::post(take)).with_state(sender);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/told", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, received)
}

#[tokio::test]
async fn promise_4_the_callback_has_the_whole_result_and_survives_refusals_and_restarts() {
    let (url, received) = receiver().await;
    let mut server = Fixture::start().await;
    let lease = accepted(&server, json!({"callback_url": url})).await;
    end(&server, &lease, Outcome::TimedOut, &[trace(json!([-0.5, null, -0.25]))]).await;
    let all = |count: usize| {
        let mut received = received.clone();
        async move {
            let enough = received.wait_for(|all| all.len() >= count);
            timeout(DEADLINE, enough).await.expect("too few callbacks came").unwrap().clone()
        }
    };
    assert_eq!(all(1).await.len(), 1);
    server.until("/api/tasks/fix-42", |task| task["callback"]["attempts"] == json!(1)).await;
    server.down().await;
    server.up().await;
    server.clock.advance(Duration::from_secs(2));
    let told = all(2).await;
    let task = server.until("/api/tasks/fix-42", |t| t["callback"]["status"] == "delivered").await;
    assert_eq!(task["callback"]["attempts"], 2);
    assert_eq!(told[0].0[EVENT_ID_HEADER], told[1].0[EVENT_ID_HEADER]);
    assert_eq!(told[0].1, told[1].1);
    let result = &told[1].1;
    assert_eq!((&result["task_id"], &result["status"]), (&json!("fix-42"), &json!("completed")));
    assert_eq!(result["results"][0]["status"], "TIMEOUT");
    assert_eq!(result["results"][0]["trajectory"]["traces"][0]["response_ids"], json!([3, 4, 5]));
    // One call for the task, none for its session.
    let (_, session) = server.get("/api/sessions/fix-42-s0").await;
    assert_eq!(session["callback"], Value::Null);
}

#[tokio::test]
async fn every_part_of_a_task_becomes_its_equal() {
    let uploads = tempfile::tempdir().unwrap();
    fs::create_dir(uploads.path().join("tests")).unwrap();
    fs::write(uploads.path().join("tests/test.sh"), "exit 0").unwrap();
    let folder = uploads.path().to_owned();
    let server = Fixture::start_with(move |config| {
        config.upload_folders = vec![folder.clone()];
    })
    .await;
    let tests = uploads.path().join("tests");
    let lease = accepted(
        &server,
        json!({
            "timeout_seconds": 900, "dispatch_priority": 5, "num_samples": 2,
            "early_stop_min_usable_sessions": 1,
            "metadata": {"agent_timeout": 300},
            "builder": {"strategy": "prefix_merging"},
            "agent": {
                "harness": "shell", "model_name": "org/model", "env": {"A": "1"},
                "custom_shell": {"command": "echo 'hi'", "cwd": "/app", "env": {"B": "2"}},
            },
            "runtime": {
                "backend": "docker", "image": "debian:12", "workdir": "/app", "gpus": 1,
                "cpus": 2, "memory_mb": 2048, "network": null,
                "kwargs": {"volumes": ["/data:/data:ro"]},
                "prepare": [
                    {"type": "exec", "command": "make", "cwd": "/app", "max_attempts": 3,
                     "retry_backoff_seconds": 4.0},
                    {"type": "upload_dir", "source": tests, "target": "/opt/tests"},
                ],
                "eval_prepare": null,
            },
            "evaluator": {"strategy": "harbor", "config": {"tests_dir": tests}},
        }),
    )
    .await;
    let spec = lease.task;
    assert_eq!((spec.priority, spec.early_stop.unwrap().usable), (5, 1));
    assert_eq!(spec.trajectory_strategy.as_str(), "prefix_merging");
    let budgets = &spec.budgets;
    assert_eq!(
        (budgets.prepare_seconds, budgets.run_seconds, budgets.grade_seconds),
        (900.0, 300.0, 120.0)
    );
    assert_eq!(
        spec.harness.command.as_deref(),
        Some(r"cd '/app' && exec bash -lc 'echo '\''hi'\'''")
    );
    assert_eq!(spec.harness.model.as_deref(), Some("org/model"));
    assert_eq!((&*spec.harness.env["A"], &*spec.harness.env["B"]), ("1", "2"));
    assert_eq!(spec.runtime.kind, RuntimeKind::Docker);
    assert_eq!(spec.runtime.network, Network::Open);
    assert_eq!(spec.runtime.gpus, Some(1));
    assert!(spec.runtime.mounts[0].read_only);
    let PrepareStep::Exec { command, workdir, .. } = &spec.runtime.prepare[0] else { panic!() };
    assert_eq!(workdir.as_deref(), Some("/app"));
    assert!(command.ends_with("attempt || { sleep 4; attempt; } || { sleep 5; attempt; }"));
    let written = |step: &PrepareStep| match step {
        PrepareStep::WriteFile { path, content, .. } => (path.clone(), content.clone()),
        other => panic!("{other:?}"),
    };
    let file = ("/opt/tests/test.sh".to_owned(), "exit 0".to_owned());
    assert_eq!(written(&spec.runtime.prepare[1]), file);
    // The tests come after the agent, and never into its sandbox before.
    let file = ("/tests/test.sh".to_owned(), "exit 0".to_owned());
    assert_eq!(written(&spec.grading.setup[1]), file);
    assert_eq!(spec.grading.sandbox, Some(GradingSandbox::Session));
    assert!(matches!(spec.evaluator, EvaluatorSpec::Harbor(_)));
}

#[tokio::test]
async fn evaluators_become_their_equals() {
    let server = Fixture::start().await;
    let runtime = json!({"image": "debian:12"});
    let instance = json!({
        "instance_id": "a__b-1", "repo": "a/b", "base_commit": "0123456789",
        "test_patch": "diff --git a/tests/test_a.py b/tests/test_a.py\n",
        "FAIL_TO_PASS": "[\"tests/test_a.py::test_b\"]", "PASS_TO_PASS": [],
    });
    for (number, (evaluator, expected)) in [
        (
            json!({"strategy": "session_completed"}),
            json!({
                "type": "command", "command": r#"test "$POLAR_AGENT_EXIT_CODE" = 0"#, "env": {},
                "reward": "exit_code",
            }),
        ),
        (
            json!({"strategy": "swebench_harness", "refresh_runtime": true, "config": {
                "instance": instance, "patch_command": "git add -A && git diff --cached",
            }}),
            json!({
                "type": "swebench", "instance_id": "a__b-1", "repo": "a/b",
                "base_commit": "0123456789",
                "test_patch": "diff --git a/tests/test_a.py b/tests/test_a.py\n",
                "fail_to_pass": ["tests/test_a.py::test_b"], "pass_to_pass": [], "env": {},
                "test_command": ". /opt/miniconda3/bin/activate testbed && pytest --no-header -rA \
                    --tb=no -p no:cacheprovider tests/test_a.py",
            }),
        ),
        (
            json!({"strategy": "test_on_output", "config": {
                "test_command": "pytest -rA", "exclude_patterns": ["build/*"], "test_timeout": 60,
                "expected_output_json": "{\"tests/test_a.py::test_b\": \"PASSED\"}",
            }}),
            json!({
                "type": "tests", "command": "bash -lc 'pytest -rA'", "env": {}, "format": "pytest",
                "fail_to_pass": ["tests/test_a.py::test_b"], "reward": "resolved",
            }),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("t{number}");
        let (status, answer) =
            submit(&server, json!({"task_id": id, "runtime": runtime, "evaluator": evaluator}))
                .await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let spec = server.lease_of_any().await.task;
        assert_eq!(serde_json::to_value(&spec.evaluator).unwrap(), expected);
        let fresh = evaluator["refresh_runtime"] == json!(true);
        assert_eq!(spec.grading.sandbox == Some(GradingSandbox::Fresh), fresh);
        if number > 0 {
            assert_eq!(spec.runtime.workdir, "/testbed");
        }
    }
}

#[tokio::test]
async fn promise_10_what_has_no_equal_is_refused_by_its_name_with_what_to_use_instead() {
    let server = Fixture::start().await;
    let agent = |changes: Value| {
        let mut agent = json!({"harness": "shell", "custom_shell": {"command": "true"}});
        agent.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        json!({ "agent": agent })
    };
    let runtime = |changes: Value| {
        let mut runtime = json!({"image": "debian:12"});
        runtime.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        json!({ "runtime": runtime })
    };
    let evaluator = |strategy: &str, config: Value| {
        json!({"evaluator": {"strategy": strategy, "config": config},
               "runtime": {"image": "debian:12"}})
    };
    for (changes, field) in [
        (json!({"task_id": "a/b"}), "task_id"),
        (json!({"task_id": "a.run2"}), "task_id"),
        (json!({"num_samples": 0}), "num_samples"),
        (json!({"timeout_seconds": 0}), "timeout_seconds"),
        (json!({"metadata": {"agent_timeout": "long"}}), "metadata.agent_timeout"),
        (json!({"callback_url": "trainer"}), "callback_url"),
        (json!({"early_stop_min_usable_sessions": 2}), "early_stop_min_usable_sessions"),
        (json!({"builder": {"strategy": "mine:Builder"}}), "builder.strategy"),
        (json!({"builder": {"strategy": "per_request", "config": {"a": 1}}}), "builder.config.a"),
        (json!({"agent": {"harness": "hermes"}}), "agent.harness"),
        (json!({"agent": {"import_path": "a:B"}}), "agent.import_path"),
        (json!({"agent": {"harness": "shell"}}), "agent.custom_shell"),
        (agent(json!({"harness": "pi"})), "agent.custom_shell"),
        (agent(json!({"skills_path": "/skills"})), "agent.skills_path"),
        (
            agent(json!({"mcp_servers": [{"name": "a", "transport": "sse", "url": "http://h"}]})),
            "agent.mcp_servers[0].transport",
        ),
        (runtime(json!({"backend": "local"})), "runtime.backend"),
        (runtime(json!({"network": "my-bridge"})), "runtime.network"),
        (runtime(json!({"import_path": "a:B"})), "runtime.import_path"),
        (runtime(json!({"kwargs": {"shm": 1}})), "runtime.kwargs.shm"),
        (runtime(json!({"kwargs": {"volumes": ["/a"]}})), "runtime.kwargs.volumes[0]"),
        (
            runtime(json!({"eval_prepare": [{"type": "exec", "command": "a"}]})),
            "runtime.eval_prepare",
        ),
        (runtime(json!({"direct_exec_init_command": "a"})), "runtime.direct_exec_init_command"),
        (
            runtime(json!({"prepare": [{"type": "exec", "command": ""}]})),
            "runtime.prepare[0].command",
        ),
        (
            runtime(
                json!({"prepare": [{"type": "upload_file", "source": "/etc/shadow", "target": "/a"}]}),
            ),
            "runtime.prepare[0].source",
        ),
        (runtime(json!({"backend": "apptainer", "gpus": 1})), "runtime.gpus"),
        (evaluator("harbor_rubric", json!({})), "evaluator.strategy"),
        (evaluator("harbor", json!({"tests_dir": "/etc"})), "evaluator.config.tests_dir"),
        (evaluator("session_completed", json!({"a": 1})), "evaluator.config.a"),
        (evaluator("swebench_harness", json!({"instance": {}})), "evaluator.config.instance"),
        (
            evaluator(
                "test_on_output",
                json!({"test_command": "a", "expected_output_json": {"t": "FAILED"}}),
            ),
            "evaluator.config.expected_output_json",
        ),
    ] {
        let (status, answer) = submit(&server, changes.clone()).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{changes}: {answer}");
        let fields: Vec<_> = answer["error"]["problems"]
            .as_array()
            .unwrap()
            .iter()
            .map(|problem| problem["field"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(fields, [field], "{changes}: {answer}");
    }
    // What not even the published Polar knows is told of, as it would ignore it.
    let (status, answer) =
        submit(&server, json!({"colour": "red", "agent": agent(json!({"nick": 1}))["agent"]}))
            .await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer["ignored"], json!(["agent.nick", "colour"]));
}

#[tokio::test]
async fn promise_9_files_come_only_from_folders_that_the_operator_named() {
    let folder = tempfile::tempdir().unwrap();
    let (open, secret) = (folder.path().join("open"), folder.path().join("secret"));
    fs::create_dir(&open).unwrap();
    fs::write(open.join("file"), "text").unwrap();
    fs::write(&secret, "hidden").unwrap();
    std::os::unix::fs::symlink(&secret, open.join("link")).unwrap();
    let named = open.clone();
    let server =
        Fixture::start_with(move |config| config.upload_folders = vec![named.clone()]).await;
    let step = |kind: &str, source: std::path::PathBuf| {
        json!({"task_id": "up", "runtime": {"image": "debian:12", "prepare": [
            {"type": kind, "source": source, "target": "/in"}]}})
    };
    for (kind, source) in [
        ("upload_file", secret.clone()),
        ("upload_file", open.join("../secret")),
        ("upload_file", open.join("link")),
        ("upload_dir", open.clone()),
        ("upload_dir", open.join("file")),
        ("upload_file", open.join("absent")),
    ] {
        let (status, answer) = submit(&server, step(kind, source.clone())).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{source:?}");
        assert!(!answer.to_string().contains("hidden"), "{answer}");
    }
    let (status, answer) = submit(&server, step("upload_file", open.join("file"))).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
}

#[tokio::test]
async fn a_name_is_refused_while_it_runs_and_runs_anew_once_it_has_ended() {
    let server = Fixture::start().await;
    let lease = accepted(&server, json!({})).await;
    // The same again, as by a client that never got the answer, is the same task.
    assert_eq!(submit(&server, json!({})).await.0, StatusCode::OK);
    let (status, _) = submit(&server, json!({"instruction": "Other."})).await;
    assert_eq!(status, StatusCode::CONFLICT);
    end(&server, &lease, Outcome::Completed, &[]).await;
    assert_eq!(server.get("/rollout/task/fix-42").await.1["status"], "completed");

    let again = accepted(&server, json!({"callback_url": "http://127.0.0.1:9/other"})).await;
    assert_eq!(again.session_id.as_str(), "fix-42.run2-s0");
    let (_, told) = server.get("/rollout/task/fix-42").await;
    assert_eq!((&told["task_id"], &told["status"]), (&json!("fix-42"), &json!("running")));
    assert_eq!(server.get("/rollout/status").await.1["tasks"], json!({"fix-42": "running"}));
    let (_, told) = server.delete("/rollout/task/fix-42").await;
    assert_eq!(told["status"], "cancelling");
}

#[tokio::test]
async fn a_task_can_be_cancelled_before_it_comes() {
    let server = Fixture::start().await;
    assert_eq!(server.delete("/rollout/task/fix-42").await.0, StatusCode::NOT_FOUND);
    let (status, told) = server.delete("/rollout/task/fix-42?register_if_missing=true").await;
    assert_eq!((status, &told["status"]), (StatusCode::OK, &json!("cancelled")));
    assert_eq!(submit(&server, json!({})).await.0, StatusCode::CONFLICT);
    server.clock.advance(Duration::from_secs(301));
    assert_eq!(submit(&server, json!({})).await.0, StatusCode::OK);
    let (_, told) = server.delete("/rollout/task/fix-42").await;
    assert_eq!(told["status"], "cancelled");
    assert_eq!(told["results"][0]["error"], "session cancelled");
    assert_eq!(server.get("/rollout/task/other").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_token_is_taken_as_published_clients_can_give_it() {
    let server =
        Fixture::start_with(|config| config.control_token = Some("t0ken".to_owned())).await;
    let ask = || server.request(Method::GET, "/rollout/status");
    let named = |token: &str| ask().header("X-Polar-Control-Token", token);
    assert_eq!(json_of(ask()).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(json_of(named("t0ken")).await.0, StatusCode::OK);
    assert_eq!(json_of(named("other")).await.0, StatusCode::UNAUTHORIZED);
    // As clients make it of a URL: http://anybody:t0ken@host.
    assert_eq!(json_of(ask().basic_auth("anybody", Some("t0ken"))).await.0, StatusCode::OK);
    let wrong = ask().basic_auth("t0ken", Some("anybody"));
    assert_eq!(json_of(wrong).await.0, StatusCode::UNAUTHORIZED);
}
