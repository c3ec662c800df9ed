//! Tasks in other forms become Polar's, whole or not at all.

use crate::support::{User, shown};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

const TASK_TOML: &str = r#"
schema_version = "1.1"
[task]
name = "org/fix-it"
[metadata]
difficulty = "easy"
[verifier]
timeout_sec = 120.0
env = { MODE = "strict", KEY = "${POLAR_TEST_UNSET:-fallback}" }
[agent]
timeout_sec = 300.0
[environment]
docker_image = "registry.example.org/fix-it:1"
cpus = 2
memory = "2G"
storage_mb = 4096
build_timeout_sec = 600.0
allow_internet = false
[solution.env]
SPEED = "high"
[[environment.mcp_servers]]
name = "files"
transport = "stdio"
command = "serve-files"
args = ["--all"]
"#;

fn harbor_folder(user: &User, config: &str) -> String {
    let folder = user.path("fix-it");
    write(&folder.join("task.toml"), config);
    write(&folder.join("instruction.md"), "<!-- canary GUID 1 -->\n\nFix it.\n");
    write(&folder.join("environment/Dockerfile"), "FROM debian:12\nWORKDIR /srv\n");
    write(&folder.join("tests/test.sh"), "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n");
    write(&folder.join("tests/data/in.txt"), "42\n");
    write(&folder.join("solution/solve.sh"), "true\n");
    folder.display().to_string()
}

fn imported(user: &User, line: &[&str]) -> Vec<Value> {
    let output = user.run(&[&["tasks", "import"], line].concat());
    assert!(output.status.success(), "{}", shown(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_harbor_folder_becomes_a_task_with_its_tests_for_the_grader_alone() {
    let user = User::new();
    let folder = harbor_folder(&user, TASK_TOML);
    let task = imported(&user, &["harbor", &folder, "--harness", "codex"]).remove(0);
    assert_eq!(task["task_id"], "org-fix-it");
    assert_eq!(task["instruction"], "Fix it.");
    assert_eq!(
        task["runtime"],
        json!({
            "type": "docker", "image": "registry.example.org/fix-it:1", "workdir": "/srv",
            "network": "none", "env": {}, "cpus": 2.0, "memory_mb": 2048,
            "storage_mb": 4096,
        })
    );
    assert_eq!(
        task["evaluator"],
        json!({"type": "harbor", "env": {"MODE": "strict", "KEY": "fallback"}})
    );
    assert_eq!(task["budgets"], json!({"run_seconds": 300.0, "grade_seconds": 120.0}));
    let server = json!({"name": "files", "command": "serve-files", "args": ["--all"]});
    assert_eq!(task["harness"], json!({"name": "codex", "mcp_servers": [server]}));
    let setup = task["grading"]["setup"].as_array().unwrap();
    assert!(setup[0]["command"].as_str().unwrap().contains("rm -rf /tests"));
    let paths: Vec<_> = setup[1..].iter().map(|step| step["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/tests/data/in.txt", "/tests/test.sh"]);

    let oracle = imported(&user, &["harbor", &folder, "--oracle", "--image", "own:{name}"]);
    assert_eq!(oracle[0]["harness"]["command"], "bash /solution/solve.sh");
    assert_eq!(oracle[0]["harness"]["env"], json!({"SPEED": "high"}));
    assert_eq!(oracle[0]["runtime"]["image"], "own:org/fix-it");
    assert_eq!(oracle[0]["runtime"]["prepare"][0]["path"], "/solution/solve.sh");
}

#[test]
fn hosts_that_a_harbor_folder_allows_are_those_of_the_task() {
    let user = User::new();
    let network = "network_mode = \"allowlist\"\nallowed_hosts = [\"pypi.org\"]";
    for config in [
        TASK_TOML.replace("allow_internet = false", network),
        TASK_TOML.replace("[agent]", &format!("[agent]\n{network}")),
    ] {
        let folder = harbor_folder(&user, &config);
        let runtime = imported(&user, &["harbor", &folder]).remove(0)["runtime"].clone();
        assert_eq!(runtime["network"], "none");
        assert_eq!(runtime["allowed_hosts"], json!(["pypi.org"]));
    }
}

#[test]
fn keys_of_a_harbor_folder_that_are_not_read_are_named() {
    let user = User::new();
    let said = |config: &str| {
        let folder = harbor_folder(&user, config);
        let output = user.run(&["tasks", "import", "harbor", &folder]);
        assert!(output.status.success(), "{}", shown(&output));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(said(TASK_TOML), "");
    let misspelt = TASK_TOML.replace("cpus = 2", "cpu = 2").replace("[agent]", "[agent]\nx.y = 1");
    let said = said(&misspelt);
    assert!(said.contains("task.toml: nothing is done about agent.x, environment.cpu"), "{said}");
}

#[test]
fn what_a_harbor_folder_asks_for_and_cannot_have_is_said() {
    let user = User::new();
    let with = |from: &str, to: &str| TASK_TOML.replace(from, to);
    let image = "docker_image = \"registry.example.org/fix-it:1\"\n";
    for (config, words) in [
        (with(image, ""), "--build"),
        (with("cpus = 2", "gpus = 1"), "GPUs"),
        (
            with("timeout_sec = 120.0", "network_mode = \"no-network\""),
            "tests with another network",
        ),
        (with("timeout_sec = 120.0", "user = \"nobody\""), "another user"),
        (with("timeout_sec = 300.0", "user = \"nobody\""), "agent.user"),
        (with("${POLAR_TEST_UNSET:-fallback}", "${POLAR_TEST_UNSET}"), "POLAR_TEST_UNSET"),
        (format!("{TASK_TOML}\n[[steps]]\nname = \"one\"\n"), "several steps"),
        ("not toml".to_owned(), "task.toml"),
    ] {
        let folder = harbor_folder(&user, &config);
        let output = user.run(&["tasks", "import", "harbor", &folder]);
        assert!(!output.status.success(), "{config}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(words) && said.contains("fix-it"), "{words}: {said}");
    }
    let empty = user.path("empty");
    fs::create_dir_all(&empty).unwrap();
    let output = user.run(&["tasks", "import", "harbor", &empty.display().to_string()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("task.toml"), "{}", shown(&output));
}

#[test]
fn a_swebench_instance_becomes_a_task_without_its_tests() {
    let user = User::new();
    let row = json!({
        "instance_id": "psf__requests-1", "repo": "psf/requests", "base_commit": "0123abcd",
        "problem_statement": "It breaks.\n", "patch": "diff --git a/r.py b/r.py\n",
        "test_patch": "diff --git a/tests/test_r.py b/tests/test_r.py\n\
            diff --git a/tests/data.json b/tests/data.json\n",
        "FAIL_TO_PASS": "[\"tests/test_r.py::test_a\"]", "PASS_TO_PASS": ["tests/test_r.py::test_b"],
        "hints_text": "look at r.py",
    });
    let other = json!({"instance_id": "a__b-2"});
    let file = user.path("instances.json");
    write(&file, &json!([other, row]).to_string());
    let file = file.display().to_string();
    let tasks = imported(&user, &["swebench", &file, "--only", "psf__requests-1"]);
    assert_eq!(tasks.len(), 1);
    let task = &tasks[0];
    assert_eq!(task["instruction"], "It breaks.");
    let image = "swebench/sweb.eval.x86_64.psf_1776_requests-1:latest";
    assert_eq!(task["runtime"]["image"], image);
    assert_eq!(task["runtime"]["prepare"], json!([{"type": "scrub_git", "path": "/testbed"}]));
    let evaluator = &task["evaluator"];
    assert_eq!(evaluator["fail_to_pass"], json!(["tests/test_r.py::test_a"]));
    assert_eq!(evaluator["base_commit"], "0123abcd");
    let command = evaluator["test_command"].as_str().unwrap();
    assert!(command.ends_with("&& pytest -rA tests/test_r.py"), "{command}");
    let seen = format!("{}{}", task["instruction"], task["runtime"]);
    assert!(!seen.contains("test_r.py") && !seen.contains("look at"), "{seen}");

    let output = user.run(&["tasks", "import", "swebench", &file]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("a__b-2") && said.contains("`repo`"), "{said}");
    let output = user.run(&["tasks", "import", "swebench", &file, "--only", "none"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no instance"), "{}", shown(&output));
}

#[test]
fn imported_lines_run_as_they_are() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let template = user.path("template.yaml");
    write(
        &template,
        "harness: {name: shell, command: 'echo 4 > answer'}\nevaluator:\n  type: python\n  code: |\n    \
         import pathlib\n    def grade(context):\n        \
         said = pathlib.Path(context['workdir'], 'answer').read_text().strip()\n        \
         return said == context['metadata']['answer']\n",
    );
    let questions = user.path("questions.jsonl");
    write(
        &questions,
        "{\"q\": \"2+2?\", \"task_id\": \"good\", \"answer\": \"4\"}\n\
         {\"q\": \"2+3?\", \"task_id\": \"bad\", \"answer\": \"5\"}\n",
    );
    let (questions, template) = (questions.display().to_string(), template.display().to_string());
    let out = user.path("tasks.jsonl").display().to_string();
    let line =
        ["tasks", "import", "jsonl", &questions, "--instruction", "q", "--template", &template];
    let output = user.run(&[&line[..], &["--out", &out]].concat());
    assert!(output.status.success(), "{}", shown(&output));
    let run = ["run", &out, "--engine", &engine, "--local-isolation=process", "--proxy-port=0"];
    let output = user.run(&run);
    let said = shown(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("mean reward of good: 1.000"), "{said}");
    assert!(said.contains("mean reward of bad: 0.000"), "{said}");
}
