//! The programs that speak Docker's language, and what they differ in.

use crate::limits::Runtime;
use std::path::PathBuf;

/// Who makes containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerEngine {
    /// Docker's own daemon.
    Docker,
    /// Podman, by the socket that `podman system service` serves.
    Podman,
}

impl ContainerEngine {
    /// The kind of sandbox, and the name of its command.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }

    pub(super) fn runtime(self) -> Runtime {
        match self {
            Self::Docker => Runtime::Docker,
            Self::Podman => Runtime::Podman,
        }
    }

    /// The socket that this user's own command would use, if it is on this machine.
    pub(super) fn usual_socket(self) -> PathBuf {
        let named = |variable: &str| {
            let named = std::env::var(variable).ok()?;
            named.strip_prefix("unix://").map(PathBuf::from)
        };
        match self {
            Self::Docker => named("DOCKER_HOST").unwrap_or_else(|| "/var/run/docker.sock".into()),
            Self::Podman => named("CONTAINER_HOST").unwrap_or_else(|| {
                let user = rustix::process::geteuid();
                let folder = match std::env::var_os("XDG_RUNTIME_DIR") {
                    _ if user.is_root() => "/run".into(),
                    Some(folder) => PathBuf::from(folder),
                    None => format!("/run/user/{}", user.as_raw()).into(),
                };
                folder.join("podman/podman.sock")
            }),
        }
    }

    /// How to get a daemon.
    pub(super) fn get(self) -> &'static str {
        match self {
            Self::Docker => {
                "`apt-get install docker.io` gives it and `systemctl start docker` starts it"
            }
            Self::Podman => {
                "`apt-get install podman` gives it, and `systemctl --user start podman.socket`, or \
                 `podman system service --time=0 unix://SOCKET` without systemd, serves it; \
                 CONTAINER_HOST=unix://SOCKET names another one"
            }
        }
    }

    /// Who may speak to it.
    pub(super) fn allow(self) -> &'static str {
        match self {
            Self::Docker => "add this user to the group `docker`, or run as root",
            Self::Podman => "start Podman's service as this user",
        }
    }

    /// What may help a daemon that hangs.
    pub(super) fn restart(self) -> &'static str {
        match self {
            Self::Docker => "`systemctl restart docker` may help",
            Self::Podman => "starting `podman system service` anew may help",
        }
    }

    /// How processes are asked for, so that they come as numbered on this machine, each
    /// with its state.
    pub(super) fn process_columns(self) -> &'static str {
        match self {
            // Arguments of `ps`.
            Self::Docker => "-eo pid,stat",
            Self::Podman => "hpid,state",
        }
    }
}
