//! What `polar run` says and how it ends, here and on a server that goes away.

use crate::support::{Running, User, shown, until};
use rustix::process::Signal;
use std::fs;
use std::process::Output;

/// A task file whose agent is a command line.
fn task(user: &User, name: &str, command: &str, more: &str) -> String {
    let file = user.path(&format!("{name}.yaml"));
    let harness = format!("harness: {{name: shell, command: {command:?}}}");
    fs::write(&file, format!("task_id: {name}\n{harness}\nruntime: local\n{more}\n")).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Runs it here.
fn run(user: &User, engine: &str, task: &str) -> Output {
    user.run(&["run", task, "--engine", engine, "--local-isolation=process", "--proxy-port=0"])
}

#[test]
fn a_run_that_could_not_be_graded_fails_and_shows_why() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let evaluator = "evaluator: {type: command, command: 'echo lost its way; sleep 1000000'}\n\
                     budgets: {grade_seconds: 1}";
    let output = run(&user, &engine, &task(&user, "ungraded", "true", evaluator));
    let said = shown(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("1 of 1 sessions could not be graded"), "{said}");
    assert!(said.contains("end of grader.log") && said.contains("| lost its way"), "{said}");
}

#[test]
fn a_run_whose_agent_failed_fails_and_shows_what_it_printed() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let two = "num_samples: 2";
    let command = r#"case "$POLAR_SESSION_ID" in *-s0) exit 0;; esac; echo broke >&2; exit 3"#;
    let output = run(&user, &engine, &task(&user, "half", command, two));
    let said = shown(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("1 of 2 sessions did not complete"), "{said}");
    assert!(said.contains("end of stderr.log") && said.contains("| broke"), "{said}");
}

#[test]
fn an_agent_that_never_called_the_model_is_warned_of() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let output = run(&user, &engine, &task(&user, "silent", "true", ""));
    let said = shown(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("silent-s0 never called the model"), "{said}");
}

#[test]
fn an_agent_that_cannot_be_started_is_no_silent_one() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let evaluator = "evaluator: {type: command, command: 'true'}";
    let output = run(&user, &engine, &task(&user, "absent", "no-such-agent", evaluator));
    let said = shown(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("(failed_to_start): the agent's program was not found"), "{said}");
    assert!(said.contains("made no call, so that there is no work to grade"), "{said}");
    assert!(!said.contains("never called the model"), "{said}");
}

#[test]
fn a_flag_wins_over_the_environment() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let file = task(&user, "typed", "true", "");
    let local = ["--local-isolation=process", "--proxy-port=0"];
    let mut typed = user.polar(&[&["run", &file, "--engine", &engine], &local[..]].concat());
    typed.env("POLAR_SERVER", "localhost:1");
    let output = Running::start(typed).finish();
    assert!(output.status.success(), "{}", shown(&output));

    let mut typed = user.polar(&["run", &file, "--server=localhost:1"]);
    typed.env("POLAR_ENGINE", &engine);
    let said = shown(&Running::start(typed).finish());
    assert!(said.contains("no answer from the rollout server"), "{said}");

    let mut neither = user.polar(&["run", &file]);
    neither.env("POLAR_ENGINE", &engine).env("POLAR_SERVER", "localhost:1");
    let said = shown(&Running::start(neither).finish());
    assert!(said.contains("POLAR_SERVER and POLAR_ENGINE are both set"), "{said}");
}

#[test]
fn logs_of_an_ended_session_are_printed() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let up = ["up", "--port=0", "--proxy-port=0", "--local-isolation=process", "--engine", &engine];
    let (_up, [server]) = user.start(&up, ["control API"]);
    let evaluator = "evaluator: {type: command, command: 'echo judged'}";
    let file = task(&user, "printing", "echo said; echo shouted >&2", evaluator);
    let output = user.run(&["run", &file, "--server", &server]);
    assert!(output.status.success(), "{}", shown(&output));
    let logs =
        |more: &[&str]| user.run(&[&["logs", "printing-s0", "--server", &server], more].concat());
    let all = String::from_utf8(logs(&[]).stdout).unwrap();
    let (said, shouted, judged) = ("stdout.log ══\nsaid", "stderr.log ══\nshouted", "judged");
    assert!([said, shouted, judged].iter().all(|part| all.contains(part)), "{all}");
    assert_eq!(logs(&["--name=stderr"]).stdout, b"shouted\n");
    let grader = shown(&logs(&["--name=grader.log", "--attempt=1"]));
    assert!(grader.contains("judged") && !grader.contains("shouted"), "{grader}");
    let none = logs(&["--attempt=7"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(shown(&none).contains("no logs of attempt 7"), "{}", shown(&none));
    let of_task = shown(&user.run(&["logs", "printing", "--server", &server]));
    assert!(of_task.contains("logs are of its sessions: printing-s0"), "{of_task}");
    let of_nothing = shown(&user.run(&["logs", "printed", "--server", &server]));
    assert!(of_nothing.contains("there is no session \"printed\""), "{of_nothing}");
}

#[test]
fn a_run_says_how_far_it_is_and_whether_it_is_an_earlier_one() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let up = ["up", "--port=0", "--proxy-port=0", "--local-isolation=process", "--engine", &engine];
    let (_up, [server]) = user.start(&up, ["control API"]);
    let file = task(&user, "again", "true", "num_samples: 2");
    let run = || {
        let output = user.run(&["run", &file, "--server", &server]);
        assert!(output.status.success(), "{}", shown(&output));
        String::from_utf8(output.stderr).unwrap()
    };
    let first = run();
    assert!(first.contains("sessions: 2 ended\n"), "{first}");
    assert!(!first.contains("submitted before"), "{first}");
    let second = run();
    assert!(second.contains("task again was submitted before"), "{second}");
}

#[test]
fn a_variable_that_is_set_to_nothing_is_no_address() {
    let user = User::new();
    for (variable, line) in [
        ("POLAR_SERVER", &["status"][..]),
        ("POLAR_SERVER", &["run", "task.yaml"]),
        ("POLAR_ENGINE", &["run", "task.yaml"]),
    ] {
        let mut command = user.polar(line);
        command.env(variable, " ");
        let output = Running::start(command).finish();
        assert_eq!(output.status.code(), Some(2), "{}", shown(&output));
        assert!(shown(&output).contains("it is empty; say `host:port`"), "{}", shown(&output));
    }
}

#[test]
fn a_run_on_a_server_outlives_a_restart_of_it() {
    let user = User::new();
    let state = format!("--state={}", user.path("server").display());
    let (mut server, [address]) =
        user.start(&["rollout-server", "--port=0", &state], ["control API"]);
    let file = task(&user, "patient", "true", "");
    let following = Running::start(user.polar(&["run", &file, "--server", &address]));
    until("the task to be there", || {
        user.run(&["status", "patient", "--server", &address]).status.success()
    });
    server.signal(Signal::KILL);
    server.end();
    following.says("does not answer; trying again for up to 60 s");
    let port = format!("--port={}", address.rsplit_once(':').unwrap().1);
    let (_again, [_]) = user.start(&["rollout-server", &port, &state], ["control API"]);
    let cancelled = user.run(&["cancel", "patient", "--server", &address]);
    assert!(cancelled.status.success(), "{}", shown(&cancelled));
    let output = following.finish();
    let said = shown(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("1 of 1 sessions did not complete"), "{said}");
}

#[test]
fn settings_that_the_harness_does_not_have_are_refused_at_submission() {
    let user = User::new();
    let state = format!("--state={}", user.path("server").display());
    let (_server, [address]) = user.start(&["rollout-server", "--port=0", &state], ["control API"]);
    let refused = |harness: &str| {
        let file = user.path("task.yaml");
        fs::write(&file, format!("instruction: x\nharness: {harness}\n")).unwrap();
        let output = user.run(&["run", file.to_str().unwrap(), "--server", &address]);
        assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
        shown(&output)
    };
    let said = refused("{name: pi, settings: {reasoning: low}}");
    assert!(said.contains("harness.settings.reasoning"), "{said}");
    assert!(said.contains("`reasoning_effort`?"), "{said}");
    let said = refused("{name: mini_swe_agent, mcp_servers: [{name: db, command: db-server}]}");
    assert!(said.contains("harness.mcp_servers: ") && said.contains("claude_code"), "{said}");
    let said = refused("{name: pi, skills: [{name: notes, content: no front matter}]}");
    assert!(said.contains("harness.skills[0].content: "), "{said}");
    let adapter = "{name: mine, version: '1', provider: any, model: m, command: [mine]}";
    let said = refused(&format!("{{name: mine, adapter: {adapter}, settings: {{a: 1}}}}"));
    assert!(said.contains("mine has no setting `a`"), "{said}");
    let said = refused("{name: mine, adapter: {name: mine}}");
    assert!(said.contains("harness.adapter: "), "{said}");
}

#[test]
fn a_port_that_is_taken_is_said_with_its_flag() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let (own, proxy) = (format!("--port={port}"), format!("--proxy-port={port}"));
    let local = ["--local-isolation=process", "--engine", &engine];
    for (command, flag) in [
        (vec!["rollout-server", &own], "--port,"),
        (vec!["simulate-engine", &own], "--port,"),
        ([&["up", &own, "--proxy-port=0"], &local[..]].concat(), "--port,"),
        ([&["up", "--port=0", &proxy], &local[..]].concat(), "--proxy-port,"),
        ([&["gateway", &own, "--control-port=0"], &local[..]].concat(), "--port,"),
        (
            [&["gateway", "--port=0", &own.replace("--", "--control-")], &local[..]].concat(),
            "--control-port,",
        ),
    ] {
        let output = user.run(&command);
        let said = shown(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("{port} is used by another process")), "{said}");
        assert!(said.contains(flag) && !said.contains("os error"), "{said}");
    }
}

#[test]
fn a_node_id_is_taken_as_it_is_or_refused() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let refused =
        user.run(&["up", "--port=0", "--proxy-port=0", "--node-id=a b/c", "--engine", &engine]);
    let said = shown(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("--node-id") && said.contains("a b/c"), "{said}");
}

#[test]
fn an_engine_that_still_starts_is_waited_for() {
    use std::io::{Read as _, Write as _};
    let user = User::new();
    let engine = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = engine.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in engine.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 503 Loading\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let up =
        Running::start(user.polar(&["up", "--port=0", "--proxy-port=0", "--engine", &address]));
    up.says(&format!("the engine at http://{address} is not ready (HTTP 503)"));
}
