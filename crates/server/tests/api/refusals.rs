//! What is refused, and how well the answer says why.

use crate::support::{Fixture, json_of, node_info, report_of, shell_task};
use polar_types::Outcome;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// Every problem of the answer, as `field: problem`.
fn problems(answer: &Value) -> Vec<String> {
    let found = answer["error"]["problems"].as_array().unwrap();
    let text = |problem: &Value, key: &str| problem[key].as_str().unwrap().to_owned();
    for problem in found {
        let example = text(problem, "example");
        let is_json = serde_json::from_str::<Value>(&example).is_ok();
        assert!(is_json, "{example:?} is no example of a value");
    }
    found.iter().map(|p| format!("{}: {}", text(p, "field"), text(p, "problem"))).collect()
}

/// Tasks that are wrong, with what is to be said of each.
fn bad_tasks() -> Vec<(Value, Vec<&'static str>)> {
    let shell = json!({ "name": "shell", "command": "true" });
    vec![
        (json!({}), vec!["harness: is missing", "instruction: must say what the agent is to do"]),
        (json!([]), vec!["body: must hold 1 to 1000 tasks, not 0"]),
        (json!("pi"), vec!["body: must be a JSON object, not a string"]),
        (
            json!({ "harness": "pj", "instruction": "x" }),
            vec!["harness.name: no adapter is called \"pj\""],
        ),
        (
            json!({ "harness": { "name": "shel", "command": "true" } }),
            vec!["harness.name: no adapter is called \"shel\""],
        ),
        (
            json!({ "harness": shell, "num_sample": 2, "nonsense": 1 }),
            vec![
                "num_sample: is not a field; did you mean `num_samples`?",
                "nonsense: is not a field; there are task_id",
            ],
        ),
        (
            json!({ "harness": shell, "num_samples": "8", "priority": 1.5, "max_attempts": 0 }),
            vec![
                "num_samples: must be a whole number of 1 or more, not string \"8\"",
                "priority: must be a whole number, not floating point `1.5`",
                "max_attempts: must be between 1 and 100, not 0",
            ],
        ),
        (
            json!({ "harness": shell, "num_samples": -1, "max_attempts": 1u64 << 40 }),
            vec![
                "num_samples: must be a whole number of 1 or more, not integer `-1`",
                "max_attempts: must be a whole number of 1 or more, not integer `1099511627776`",
            ],
        ),
        (
            json!({ "harness": { "name": "shell", "command": "a\0b" },
                "runtime": { "prepare": [{ "type": "exec", "command": "\0" }] },
                "evaluator": { "type": "command", "command": "true\0" } }),
            vec![
                "harness.command: must not hold a NUL character",
                "runtime.prepare[0].command: must not hold a NUL character",
                "evaluator.command: must not hold a NUL character",
            ],
        ),
        (
            json!({ "harness": shell, "runtime": { "type": "local", "memry_mb": 1, "gpus": 2,
                "user": "nobody", "mounts": [{ "source": "data/../etc" }] } }),
            vec![
                "runtime.memry_mb: is not a field; did you mean `memory_mb`?",
                "runtime.user: the local runtime cannot hold to this; leave it out or use docker",
                "runtime.gpus: the local runtime cannot hold to this; leave it out or use docker",
                "runtime.mounts[0].source: must be an absolute path without `..`",
                "runtime.mounts[0].target: must be an absolute path without `..`",
            ],
        ),
        (
            json!({ "harness": shell, "runtime": { "type": "docker", "image": "Debian:12",
                "prepare": [{ "type": "exec", "command": "true", "attempts": 0 }] } }),
            vec![
                "runtime.image: is no name that an image can have: \"Debian\" has capital letters",
                "runtime.prepare[0].attempts: must be between 1 and 10, not 0",
            ],
        ),
        (
            json!({ "harness": shell, "runtime": { "type": "local", "gpus": 0 } }),
            vec!["runtime.gpus: must be at least 1; leave it out for none"],
        ),
        (
            json!({ "harness": shell, "trajectory_strategy": "prefix_mergin" }),
            vec![
                "trajectory_strategy: must be one of `per_request`, `prefix_merging`, `prefix_tree`",
            ],
        ),
        (
            json!({ "harness": shell, "train_roles": ["none", "main", "subagent", "title", 3],
                "history": "as_is" }),
            vec![
                "train_roles[0]: must be one of `main`, `sub_agent`, `title`, `summary`, `probe`",
                "train_roles[2]: must be one of `main`, `sub_agent`, `title`, `summary`, `probe`",
                "train_roles[4]: must be string or map, not integer `3`",
                "history: must be one of `sampled`, `template`, `as_sent`, not `as_is`",
            ],
        ),
        (
            json!({ "harness": shell, "train_roles": [] }),
            vec!["train_roles: names no role, so that nothing would be trained"],
        ),
        (
            json!({ "harness": { "name": "shell", "command": "true", "keep": "billing_line",
                "skills": [{}] } }),
            vec![
                "harness.keep: must be an array, not string \"billing_line\"",
                "harness.skills[0].name: is missing",
            ],
        ),
        (
            json!({ "harness": { "name": "shell", "command": "true",
                "mcp_servers": [{ "name": "a b", "comand": "x" }] } }),
            vec![
                "harness.mcp_servers[0].comand: is not a field; did you mean `command`?",
                "harness.mcp_servers[0].name: must be up to 64 letters",
            ],
        ),
        (
            json!({ "harness": { "name": "shell", "command": "true",
                "mcp_servers": [{ "name": "a", "url": "ftp://a" }, { "name": "a", "command": "" }],
                "skills": [
                    { "name": "a", "path": "a" },
                    { "name": "b", "content": "---\nname: c\ndescription: d\n---\n" },
                ] } }),
            vec![
                "harness.mcp_servers[0].url: must start with http:// or https://",
                "harness.mcp_servers[1].name: the name \"a\" appears twice",
                "harness.mcp_servers[1].command: must not be empty",
                "harness.skills[0].path: must be an absolute folder",
                "harness.skills[1].content: calls the skill \"c\"",
            ],
        ),
        (json!({ "harness": shell, "runtime": "lxc" }), vec!["runtime: unknown runtime \"lxc\""]),
        (
            json!({ "harness": shell, "evaluator": { "type": "command", "comand": "pytest" } }),
            vec![
                "evaluator.comand: is not a field; did you mean `command`?",
                "evaluator.command: is missing",
            ],
        ),
        // serde reads what has a `type` as a whole, and names no field of it.
        (
            json!({ "harness": shell, "evaluator": { "type": "tests", "command": 3, "format": "tap",
                "fail_to_pass": "a", "pass_to_pass": ["a", 2] } }),
            vec![
                "evaluator.command: must be a string, not integer `3`",
                "evaluator.fail_to_pass: must be an array, not string \"a\"",
                "evaluator.pass_to_pass[1]: must be a string, not integer `2`",
            ],
        ),
        (
            json!({ "harness": shell,
                "evaluator": { "type": "tests", "command": "x", "format": "pytst",
                    "fail_to_pass": [1] },
                "runtime": { "prepare": [{ "type": "write_file", "path": "a", "content": "x",
                    "executable": "yes", "encoding": "utf-8" }] },
            }),
            vec![
                "evaluator.format: must be one of `pytest`, `junit`, `cargo`, `go`, `tap`",
                "evaluator.fail_to_pass[0]: must be a string, not integer `1`",
                "runtime.prepare[0].executable: must be a boolean, not string \"yes\"",
                "runtime.prepare[0].encoding: must be `utf8` or `base64`, not `utf-8`",
            ],
        ),
        (
            json!({ "harness": shell, "runtime": { "allowed_hosts": ["localhost:80", "a b"] } }),
            vec![
                "runtime.allowed_hosts[0]: no name leads a sandbox to the node itself; say the",
                "runtime.allowed_hosts[1]: \"a b\" is no host",
            ],
        ),
        (
            json!({ "harness": shell, "evaluator": { "type": "weighted_sum", "of": [
                { "weight": 1, "evaluator": { "type": "command", "command": "true" } },
                { "weight": "1", "evaluator": { "type": "all", "of": [
                    { "type": "tests", "command": "pytest", "formt": "pytest" },
                    { "type": "commnd", "command": "true" },
                    { "type": "command" },
                ] } },
            ] } }),
            vec![
                "evaluator.of[1].weight: must be a number, not string \"1\"",
                "evaluator.of[1].evaluator.of[0].formt: is not a field; did you mean `format`?",
                "evaluator.of[1].evaluator.of[0].format: is missing",
                "evaluator.of[1].evaluator.of[1].type: must be one of `none`, `command`",
                "evaluator.of[1].evaluator.of[2].command: is missing",
            ],
        ),
        (
            json!({ "harness": shell, "runtime": { "prepare": [
                { "type": "exec", "command": "true" },
                { "type": "exec", "comand": "true" },
                { "type": "write_file", "path": 3, "content": "x" },
                { "type": "upload", "source": "." },
            ] } }),
            vec![
                "runtime.prepare[1].comand: is not a field; did you mean `command`?",
                "runtime.prepare[1].command: is missing",
                "runtime.prepare[2].path: must be a string, not integer `3`",
                "runtime.prepare[3].type: must be one of `write_file`, `exec`, `scrub_git`",
            ],
        ),
        (
            json!({ "harness": shell, "runtime": { "prepare": [
                "ls", { "command": "true" }, {}, { "type": "exec", "command": "true" },
            ] }, "evaluator": { "command": "true" } }),
            vec![
                "runtime.prepare[0]: must be an object whose `type` says what it is, not string \"ls\"",
                "runtime.prepare[1].type: is missing; must be one of `write_file`, `exec`, `scrub_git`; \
                 `upload` is for task files",
                "runtime.prepare[2].type: is missing; must be one of",
                "evaluator.type: is missing; must be one of `none`, `command`",
            ],
        ),
        (
            json!({ "harness": shell, "sampling": { "temperature": -1, "top_p": 2 },
                "budgets": { "run_seconds": 0 }, "callback": "trainer:9000" }),
            vec![
                "sampling.temperature: must be a number of 0 or more",
                "sampling.top_p: must be above 0 and at most 1",
                "budgets.run_seconds: must be above 0",
                "callback.url: must be an http or https URL",
            ],
        ),
        (
            json!({ "harness": shell, "runtime": { "type": "local",
                "prepare": [{ "type": "exec", "command": "" }] } }),
            vec!["runtime.prepare[0].command: must be a shell command"],
        ),
        (
            json!({ "harness": shell, "task_id": "a/b" }),
            vec!["task_id: \"a/b\" is not a valid task id"],
        ),
        (
            json!([{ "harness": shell }, { "harness": shell, "num_samples": 0 }, { "harnes": shell }]),
            vec![
                "tasks[1].num_samples: must be between 1 and 4096, not 0",
                "tasks[2].harnes: is not a field; did you mean `harness`?",
                "tasks[2].harness: is missing",
            ],
        ),
    ]
}

#[tokio::test]
async fn a_bad_task_is_told_every_wrong_field() {
    let server = Fixture::start().await;
    for (body, expected) in bad_tasks() {
        let (status, answer) = server.post("/api/tasks", &body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{body}: {answer}");
        assert_eq!(answer["error"]["code"], "invalid");
        let found = problems(&answer);
        for problem in &expected {
            assert!(
                found.iter().any(|f| f.starts_with(problem)),
                "{problem:?} is not in {found:#?}"
            );
        }
        let beside = found.iter().filter(|f| !expected.iter().any(|e| f.starts_with(e)));
        let tolerated = |f: &&String| !f.contains("instruction: must say");
        let beside: Vec<_> = beside.filter(tolerated).collect();
        assert!(beside.is_empty(), "{body} is told more than is wrong: {beside:#?}");
    }
    let (_, page) = server.get("/api/tasks").await;
    assert_eq!(page["tasks"], json!([]), "nothing of it was stored");
}

/// What is given as an example of a field's value is one: put there, the field is right.
#[tokio::test]
async fn the_example_of_a_field_mends_it() {
    let server = Fixture::start().await;
    let fields = every_field();
    let wrong = fields.iter().flat_map(|whole| {
        let ways = ways_of(whole, &[]);
        ways.into_iter().map(|way| {
            let mut body = whole.clone();
            let value = at(&mut body, &way).unwrap();
            *value = if value.is_string() || value.is_array() { json!(7) } else { json!("x") };
            body
        })
    });
    let bad = bad_tasks().into_iter().map(|(body, _)| body).filter(Value::is_object);
    let mut failed = Vec::new();
    for body in wrong.chain(bad) {
        let (_, answer) = server.post("/api/tasks", &body).await;
        let Some(problems) = answer["error"]["problems"].as_array() else { continue };
        for problem in problems {
            let (field, what) = (&problem["field"], problem["problem"].as_str().unwrap());
            let example: Value =
                serde_json::from_str(problem["example"].as_str().unwrap()).unwrap();
            if what.starts_with("is not a field") || field == "body" {
                continue;
            }
            let mut mended = body.clone();
            // Of one that was given as a word there is no such place.
            if !put(&mut mended, field.as_str().unwrap(), example.clone()) {
                continue;
            }
            let (_, answer) = server.post("/api/tasks", &mended).await;
            let again = answer["error"]["problems"].as_array().into_iter().flatten();
            let again: Vec<_> = again.filter(|problem| &problem["field"] == field).collect();
            if !again.is_empty() {
                failed.push(format!("{field}: {what}: {example} is no example: {again:?}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Tasks that together have every field there is.
fn every_field() -> Vec<Value> {
    let shell = json!({
        "name": "shell", "command": "true", "model": "m", "env": {}, "settings": {}, "keep": [],
    });
    let steps = json!([
        {"type": "write_file", "path": "a", "content": "a", "encoding": "utf8",
            "executable": true},
        {"type": "exec", "command": "true", "workdir": "/", "env": {}, "attempts": 2},
        {"type": "scrub_git", "path": "/testbed"},
    ]);
    let command = json!({"type": "command", "command": "true", "workdir": "/", "env": {},
        "reward": "exit_code"});
    let evaluators = [
        command.clone(),
        json!({"type": "tests", "command": "true", "workdir": "/", "env": {}, "format": "tap",
            "report": "a", "fail_to_pass": ["a"], "pass_to_pass": ["b"], "reward": "resolved"}),
        json!({"type": "harbor", "script": "/a", "logs": "/b", "workdir": "/", "env": {},
            "reward_key": "a"}),
        json!({"type": "swebench", "instance_id": "a", "repo": "a/b", "base_commit": "abcd",
            "test_patch": "diff --git a/t b/t", "fail_to_pass": ["a"], "pass_to_pass": ["b"],
            "test_command": "true", "log_parser": "pytest", "workdir": "/", "env": {}}),
        json!({"type": "judge", "endpoint": "http://a", "model": "m", "key_env": "POLAR_KEY_A",
            "rubric": "a", "show": ["diff"], "max_characters": 9999, "temperature": 0.5,
            "attempts": 1}),
        json!({"type": "http", "url": "http://a", "key_env": "POLAR_KEY_A", "attempts": 1}),
        json!({"type": "python", "code": "def grade(c): ...", "function": "grade", "python": "python3", "env": {}}),
        json!({"type": "weighted_sum", "of": [{"weight": 1.0, "evaluator": command.clone()}]}),
        json!({"type": "all", "of": [command.clone()]}),
        json!({"type": "first", "of": [command]}),
    ];
    let mut tasks: Vec<Value> = evaluators
        .into_iter()
        .map(|evaluator| {
            json!({"harness": shell, "evaluator": evaluator,
                "runtime": {"type": "docker", "image": "a"}})
        })
        .collect();
    tasks.push(json!({
        "instruction": "x", "harness": shell, "evaluator": "none",
        "runtime": {"type": "docker", "image": "a", "workdir": "/a", "prepare": steps, "env": {},
            "network": "none", "allowed_hosts": ["a.org"], "cpus": 1.0, "memory_mb": 99,
            "pids": 99, "user": "a", "storage_mb": 99, "gpus": 1,
            "mounts": [{"source": "/a", "target": "/a", "read_only": true}]},
        "grading": {"sandbox": "fresh", "patch": true, "exclude": ["a"], "files": ["/a"],
            "max_mb": 1, "setup": steps, "on_hack": "label"},
        "trajectory_strategy": "per_request", "train_roles": ["main"], "num_samples": 2,
        "sampling": {"temperature": 1.0, "top_p": 0.5, "top_k": 1, "max_tokens": 9, "seed": 1,
            "stop": ["a"]},
        "history": "sampled",
        "budgets": {"prepare_seconds": 9.0, "run_seconds": 9.0, "grade_seconds": 9.0},
        "max_attempts": 2, "priority": 1, "weight": 2, "queue": "default",
        "early_stop": {"usable": 1},
        "callback": {"url": "http://a", "secret": "a", "format": "ends"}, "metadata": {},
    }));
    tasks.push(json!({
        "harness": shell, "timeout_seconds": 9.0, "task_id": "t",
    }));
    tasks.push(json!({
        "instruction": "x",
        "harness": {"name": "pi", "mcp_servers": [
            {"name": "a", "command": "a", "args": ["a"], "env": {}},
            {"name": "b", "url": "http://a", "headers": {}},
        ], "skills": [
            {"name": "release-notes",
                "content": "---\nname: release-notes\ndescription: d\n---\n"},
        ]},
    }));
    tasks.push(json!({
        "instruction": "x", "harness": {"name": "pi", "skills": [{"name": "b", "path": "/a"}]},
    }));
    tasks
}

/// The ways to everything within a value.
fn ways_of(value: &Value, before: &[String]) -> Vec<Vec<String>> {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, it)| (name.clone(), it)).collect(),
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, it)| (index.to_string(), it)).collect()
        }
        _ => Vec::new(),
    };
    let mut ways = Vec::new();
    for (step, value) in inner {
        let way: Vec<String> = before.iter().cloned().chain([step]).collect();
        ways.extend(ways_of(value, &way));
        ways.push(way);
    }
    ways
}

fn at<'a>(value: &'a mut Value, way: &[String]) -> Option<&'a mut Value> {
    way.iter().try_fold(value, |value, step| match value {
        Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
        other => other.get_mut(step),
    })
}

/// Puts a value where a field's name leads. False where its object is not there.
fn put(body: &mut Value, field: &str, new: Value) -> bool {
    let way: Vec<String> =
        field.replace('[', ".").replace(']', "").split('.').map(str::to_owned).collect();
    let (last, before) = way.split_last().unwrap();
    match at(body, before) {
        Some(Value::Object(fields)) => {
            fields.insert(last.clone(), new);
            true
        }
        Some(Value::Array(items)) => {
            let place = items.get_mut(last.parse::<usize>().unwrap());
            place.map(|place| *place = new).is_some()
        }
        _ => false,
    }
}

#[tokio::test]
async fn a_query_that_cannot_be_read_names_the_parameter() {
    let server = Fixture::start().await;
    for (path, problem) in [
        ("/api/events?after=abc", "after: must be a whole number of 0 or more"),
        ("/api/events?after=-1", "after: must be a whole number of 0 or more"),
        ("/api/events?wait_seconds=soon", "wait_seconds: must be a number"),
        ("/api/sessions/a-s0/logs?stream=err", "stream: must be one of `stdout`"),
    ] {
        let (status, answer) = server.get(path).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{path}: {answer}");
        let found = problems(&answer);
        assert!(found.len() == 1 && found[0].starts_with(problem), "{path}: {found:?}");
    }
}

#[tokio::test]
async fn the_document_declares_the_token() {
    let server = Fixture::start().await;
    let (_, document) = server.get("/api/openapi.json").await;
    assert_eq!(document["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    assert_eq!(document["security"], json!([{ "bearer": [] }]));
    assert_eq!(document["paths"]["/api/health"]["get"]["security"], json!([{}]));
}

#[tokio::test]
async fn what_is_not_json_is_told_where() {
    let server = Fixture::start().await;
    for (body, part) in
        [("", "is empty"), ("{\"harness\": ", "line 1 column"), ("harness=pi", "is not JSON")]
    {
        let (status, answer) = json_of(server.request(Method::POST, "/api/tasks").body(body)).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(problems(&answer)[0].contains(part), "{answer}");
    }
}

#[tokio::test]
async fn refusals_have_one_shape() {
    let server = Fixture::start_with(|config| config.body_limit = 1000).await;
    server.submit(json!({ "task_id": "t" })).await;
    let large = shell_task(json!({ "instruction": "x".repeat(2000) })).to_string();
    let cases = [
        (server.request(Method::GET, "/nowhere"), 404, "not_found"),
        (server.request(Method::GET, "/api/nowhere"), 404, "not_found"),
        (server.request(Method::GET, "/api/tasks/nope"), 404, "not_found"),
        (server.request(Method::GET, "/api/tasks/nope/sessions"), 404, "not_found"),
        (server.request(Method::GET, "/api/tasks/nope/trajectories"), 404, "not_found"),
        (server.request(Method::DELETE, "/api/tasks/nope"), 404, "not_found"),
        (server.request(Method::GET, "/api/sessions/nope"), 404, "not_found"),
        (server.request(Method::GET, "/api/sessions/t-s0/trajectory"), 404, "not_found"),
        (server.request(Method::GET, "/api/tasks/a%20b"), 422, "invalid"),
        (server.request(Method::GET, "/api/tasks?limit=0"), 422, "invalid"),
        (server.request(Method::GET, "/api/tasks?limit=x"), 422, "invalid"),
        (server.request(Method::GET, "/api/tasks?status=happy"), 422, "invalid"),
        (server.request(Method::GET, "/api/events?kinds=party"), 422, "invalid"),
        (server.request(Method::GET, "/api/tasks/t/trajectories?status=happy"), 422, "invalid"),
        (server.request(Method::GET, "/api/sessions/t-s0/logs?stream=noise"), 422, "invalid"),
        (server.request(Method::PUT, "/api/tasks"), 405, "invalid"),
        (server.request(Method::POST, "/api/tasks").body(large), 413, "too_large"),
        (server.request(Method::GET, "/api/blobs/xyz"), 422, "invalid"),
    ];
    for (index, (request, status, code)) in cases.into_iter().enumerate() {
        let (found, answer) = json_of(request).await;
        assert_eq!(found.as_u16(), status, "case {index}: {answer}");
        assert_eq!(answer["error"]["code"], code, "case {index}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|m| !m.is_empty()));
        assert!(answer["error"]["problems"].is_array());
    }
}

#[tokio::test]
async fn one_task_id_means_one_body() {
    let server = Fixture::start().await;
    let short = json!({ "task_id": "t", "harness": "pi", "instruction": "x", "metadata": {"a": 1, "b": 2} });
    let (status, first) = server.post("/api/tasks", &short).await;
    assert_eq!(status, StatusCode::CREATED);
    // The long forms and another order say the same.
    let long = json!({ "metadata": {"b": 2, "a": 1}, "instruction": "x", "num_samples": 1,
        "harness": { "name": "pi" }, "runtime": { "type": "local" }, "task_id": "t" });
    let (status, again) = server.post("/api/tasks", &long).await;
    assert_eq!((status, again), (StatusCode::OK, first));
    let other = json!({ "task_id": "t", "harness": "pi", "instruction": "y" });
    let (status, answer) = server.post("/api/tasks", &other).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::CONFLICT, &json!("conflict")));
    let batch = json!([{ "task_id": "new", "harness": "pi", "instruction": "x" }, other]);
    assert_eq!(server.post("/api/tasks", &batch).await.0, StatusCode::CONFLICT);
    assert_eq!(server.get("/api/tasks/new").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_result_is_refused_until_its_files_are_there() {
    let server = Fixture::start().await;
    server.submit(json!({ "task_id": "t" })).await;
    let lease = server.lease("n1", 1).await.remove(0);
    let mut report = report_of(&lease, "n1", Outcome::Completed);
    let mut file = server.upload("trajectory.json", "{}").await;
    file.size += 1;
    report.artifacts = vec![file.clone()];
    let (status, answer) = server.post("/api/sessions/t-s0/result", &report).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer["error"]["problems"][0]["field"], "artifacts[0]");
    file.sha256 = "0".repeat(64);
    report.artifacts = vec![file];
    let (_, answer) = server.post("/api/sessions/t-s0/result", &report).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("was not uploaded"), "{answer}");
    let (_, session) = server.get("/api/sessions/t-s0").await;
    assert_eq!(session["status"], "preparing");
}

#[tokio::test]
async fn a_node_speaks_for_itself_only() {
    let server = Fixture::start().await;
    let ask = json!({ "node": node_info("n1", "boot-1"), "free": 1 });
    let (status, answer) = server.post("/api/nodes/n2/lease", &ask).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer["error"]["problems"][0]["field"], "node.node_id");
}

#[tokio::test]
async fn promise_6_a_body_that_stops_coming_is_given_up() {
    let server = Fixture::start_with(|config| {
        config.body_idle = std::time::Duration::from_millis(50);
    })
    .await;
    for (method, path) in [
        (Method::POST, "/api/tasks".to_owned()),
        (Method::PUT, format!("/api/blobs/{}", "0".repeat(64))),
    ] {
        let begun = futures_util::stream::iter([Ok::<_, std::io::Error>("{\"harness\":")]);
        let never = futures_util::stream::pending();
        let body = reqwest::Body::wrap_stream(futures_util::StreamExt::chain(begun, never));
        let (status, answer) = json_of(server.request(method, &path).body(body)).await;
        assert!(status.is_client_error(), "{status}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("nothing more came for 0.05 seconds"), "{message}");
    }
    assert_eq!(server.get("/api/health").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_batch_asks_for_a_bounded_number_of_sessions() {
    let server = Fixture::start().await;
    let many: Vec<Value> = (0..17).map(|_| shell_task(json!({ "num_samples": 4096 }))).collect();
    let (status, answer) = server.post("/api/tasks", &many).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(problems(&answer)[0].contains("at most 65536 sessions"), "{answer}");
}
