//! An engine that gives raw text: what is said at the start, and the options that mend it.

use crate::support::{Running, User, shown};

fn raw_engine(user: &User) -> (Running, String) {
    let line = ["simulate-engine", "--port=0", "--policy=echo", "--raw-text"];
    let (running, [url]) = user.start(&line, ["engine simulator at"]);
    (running, url)
}

#[test]
fn raw_text_is_told_at_the_start_with_the_option_to_set() {
    let user = User::new();
    let (_engine, engine) = raw_engine(&user);
    let up = ["up", "--engine", &engine, "--port=0", "--proxy-port=0"];
    let up = Running::start(user.polar(&[&up[..], &["--local-isolation=process"]].concat()));
    up.says("let Polar parse calls with --tool-parser auto");
    up.says("let Polar parse it with --reasoning-parser auto");
}

#[test]
fn parsers_are_found_by_the_template() {
    let user = User::new();
    let (_engine, engine) = raw_engine(&user);
    let parsers = ["--tool-parser", "auto", "--reasoning-parser", "auto"];
    let said = shown(&user.run(&[&["doctor", "--engine", &engine], &parsers[..]].concat()));
    assert!(
        said.contains("parsed by Polar as hermes, found by the model's chat template"),
        "{said}"
    );
    assert!(!said.contains("comes back as text"), "{said}");
    let said = shown(&user.run(&["doctor", "--engine", &engine, "--tool-parser", "herms"]));
    assert!(said.contains("hermes, qwen3_coder, glm45"), "{said}");
}
