//! Control APIs ask for a token, and who is meant to have it finds it.

use crate::support::{DEADLINE, User, shown, until};
use reqwest::{Client, StatusCode};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What a request without a token, and one with it, is told.
async fn told(url: &str, token: &str) -> [(StatusCode, String); 2] {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder().timeout(DEADLINE).no_proxy().build().unwrap();
    let answer = async |request: reqwest::RequestBuilder| {
        let answer = request.send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    };
    [answer(client.get(url)).await, answer(client.get(url).bearer_auth(token)).await]
}

#[tokio::test]
async fn promise_9_a_server_makes_its_token_and_everything_of_the_user_finds_it() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let state = format!("--state={}", user.path("anywhere").display());
    let (_server, [server, said]) =
        user.start(&["rollout-server", "--port=0", &state], ["control API", "token        in"]);
    assert_eq!(said, user.token_file().display().to_string());
    let mode = std::fs::metadata(user.token_file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let [(closed, why), (open, _)] = told(&format!("{server}/api/tasks"), &user.token()).await;
    assert_eq!((closed, open), (StatusCode::UNAUTHORIZED, StatusCode::OK));
    assert!(why.contains("~/.local/state/polar/token"), "{why}");

    // A node, started without a word about tokens, is let in; its own port is closed too.
    let node_state = format!("--state={}", user.path("node").display());
    let node = ["gateway", "--rollout-server", &server, "--engine", &engine, "--node-id=near"];
    let more = ["--port=0", "--control-port=0", "--local-isolation=process", &node_state];
    let (_node, [control]) = user.start(&[&node[..], &more[..]].concat(), ["control  "]);
    let [(closed, _), (open, _)] = told(&format!("{control}/sessions"), &user.token()).await;
    assert_eq!((closed, open), (StatusCode::UNAUTHORIZED, StatusCode::OK));
    until("the node to be seen", || {
        let status = user.run(&["status", "--server", &server]);
        assert!(status.status.success(), "{}", shown(&status));
        String::from_utf8_lossy(&status.stdout).contains("near")
    });

    let stranger = User::new();
    let refused = stranger.run(&["status", "--server", &server]);
    assert_eq!(refused.status.code(), Some(1));
    let said = shown(&refused);
    assert!(said.contains("POLAR_TOKEN") && said.contains("polar/token"), "{said}");
    let mut knows = stranger.polar(&["status", "--server", &server]);
    let knows = knows.env("POLAR_TOKEN", user.token()).output().unwrap();
    assert!(knows.status.success(), "{}", shown(&knows));
}

#[tokio::test]
async fn promise_9_all_in_one_process_is_closed_as_well() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let up = ["up", "--port=0", "--proxy-port=0", "--local-isolation=process", "--engine", &engine];
    let (_up, [server]) = user.start(&up, ["control API"]);
    let [(closed, _), (open, _)] = told(&format!("{server}/api/tasks"), &user.token()).await;
    assert_eq!((closed, open), (StatusCode::UNAUTHORIZED, StatusCode::OK));
    let status = user.run(&["status", "--server", &server]);
    assert!(status.status.success(), "{}", shown(&status));
}

#[test]
fn a_token_that_is_given_is_kept_nowhere() {
    let user = User::new();
    let state = format!("--state={}", user.path("anywhere").display());
    let (_server, [server]) =
        user.start(&["rollout-server", "--port=0", "--token=mine", &state], ["control API"]);
    assert!(!user.token_file().exists());
    for (arguments, code) in [(&["--token=mine"][..], 0), (&[], 1)] {
        let status = user.run(&[&["status", "--server", &server], arguments].concat());
        assert_eq!(status.status.code(), Some(code), "{}", shown(&status));
    }
}

#[test]
fn a_node_of_another_machine_is_told_that_it_needs_the_token() {
    let user = User::new();
    let refused = user.run(&["gateway", "--rollout-server=far.example:50051", "--engine=x:1"]);
    let said = shown(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    for part in ["far.example:50051", "--token", "POLAR_TOKEN", "~/.local/state/polar/token"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_node_with_a_wrong_token_ends_and_says_where_the_right_one_is() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let (_server, [server]) = user.start(&["rollout-server", "--port=0"], ["control API"]);
    let node = ["gateway", "--rollout-server", &server, "--engine", &engine, "--token=wrong"];
    let more = ["--port=0", "--control-port=0", "--local-isolation=process"];
    let refused = user.run(&[&node[..], &more].concat());
    let said = shown(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    for part in ["401", "--token", "POLAR_TOKEN", "~/.local/state/polar/token"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn promise_9_no_other_user_of_the_machine_can_read_the_state() {
    let user = User::new();
    let (_engine, engine) = user.engine();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let state = user.path("anywhere");
    // As an earlier version left them.
    for folder in ["server", "node", "node/sessions"] {
        std::fs::create_dir_all(state.join(folder)).unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(state.join(folder), open).unwrap();
    }
    let argument = format!("--state={}", state.display());
    let up = ["up", "--port=0", "--proxy-port=0", "--local-isolation=process", &argument];
    let (_up, _) = user.start(&[&up[..], &["--engine", &engine]].concat(), ["control API"]);
    for folder in ["server", "server/blobs/sha256", "node", "node/sessions", "node/captures"] {
        assert_eq!(mode(&state.join(folder)), 0o700, "{folder}");
    }
    for file in ["server/polar.db", "server/polar.db-wal", "node/lock", "node/instance"] {
        assert_eq!(mode(&state.join(file)), 0o600, "{file}");
    }

    let doctor = User::new();
    doctor.run(&["doctor"]);
    assert_eq!(mode(&doctor.path(".local/state/polar")), 0o700);
}
