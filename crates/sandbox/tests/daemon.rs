//! What is said when there is no Docker daemon, or none that answers. Needs no Docker.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use polar_sandbox::{DockerConfig, DockerProvider, SandboxError, SandboxProvider};
use std::collections::HashSet;
use std::path::Path;
use tokio::net::UnixListener;

async fn problems(socket: &Path) -> [SandboxError; 2] {
    let folder = tempfile::tempdir().unwrap();
    let config =
        DockerConfig { socket: socket.to_owned(), ..DockerConfig::new("node", folder.path()) };
    let provider = DockerProvider::new(config);
    let check = provider.check().await.unwrap_err();
    [check, provider.sweep(&HashSet::new()).await.unwrap_err()]
}

#[tokio::test]
async fn missing_daemon_is_said_with_how_to_get_it() {
    for problem in problems(Path::new("/no/docker.sock")).await {
        assert!(problem.retryable);
        assert!(problem.message.contains("/no/docker.sock"), "{problem}");
        assert!(problem.message.contains("apt-get install docker.io"), "{problem}");
    }
}

#[tokio::test]
async fn daemon_that_hangs_up_can_be_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let hang_up = tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    for problem in problems(&socket).await {
        assert!(problem.retryable, "{problem}");
        assert!(problem.message.contains("docker.sock"), "{problem}");
    }
    hang_up.abort();
}

/// Time is paused: it runs to the next deadline whenever nothing else happens.
#[tokio::test(start_paused = true)]
async fn promise_6_daemon_that_does_not_answer_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    for problem in problems(&socket).await {
        assert!(problem.retryable, "{problem}");
        assert!(problem.message.contains("does not answer"), "{problem}");
    }
}
