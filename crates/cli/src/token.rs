//! The token of this user's own servers.
//!
//! A sandbox with an open network shares the machine's loopback, so that loopback alone
//! keeps no agent from the control API, where it could grade itself or start commands. A
//! server that is given no token makes one and keeps it in the user's state folder, which
//! no sandbox shows. All of the user's servers on the machine share it, so that commands,
//! nodes and the SDK find it by themselves, whichever of them comes first.
//!
//! The token in the file is told to servers on loopback only. It must never be sent to
//! another machine, which may belong to somebody else.

use crate::api::base_url;
use crate::paths;
use anyhow::{Context, Result, bail, ensure};
use reqwest::Url;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// What opens a control API.
pub(crate) struct Token {
    pub(crate) secret: String,
    /// The user's file, when it is the token in there.
    pub(crate) kept_in: Option<PathBuf>,
}

/// The token of an API that this process serves: the one given, else the user's own, made
/// when there is none yet.
pub(crate) fn of_listener(given: Option<String>) -> Result<Token> {
    if let Some(secret) = given.filter(|secret| !secret.is_empty()) {
        return Ok(Token { secret, kept_in: None });
    }
    let file = file()?;
    let secret = kept_or_made(&file).with_context(|| {
        format!("keep a token in {}; or give one with --token or POLAR_TOKEN", file.display())
    })?;
    Ok(Token { secret, kept_in: Some(file) })
}

/// The token to tell a server: the one given, else the user's own when the server is on
/// this machine and there is one.
pub(crate) fn for_server(address: &str, given: Option<String>) -> Result<Option<String>> {
    let given = given.filter(|secret| !secret.is_empty());
    if given.is_some() || !is_on_this_machine(address) {
        return Ok(given);
    }
    let file = file()?;
    kept(&file).with_context(|| format!("read the token in {}", file.display()))
}

/// The same for a node, which cannot work without one.
pub(crate) fn of_node(rollout_server: Option<&str>, given: Option<String>) -> Result<Token> {
    let missing = given.as_ref().is_none_or(String::is_empty);
    if let Some(address) = rollout_server.filter(|address| !is_on_this_machine(address) && missing)
    {
        bail!(
            "the rollout server at {address} needs its token; give it with --token or \
             POLAR_TOKEN. It was given to the server at its start, or else is in {} on its \
             machine",
            place()
        );
    }
    of_listener(given)
}

/// The token of a server that only this process talks to.
pub(crate) fn of_this_process() -> Result<Token> {
    Ok(Token { secret: random_hex()?, kept_in: None })
}

/// Where tokens are kept, in the words of a person: `~/.local/state/polar/token`.
pub(crate) fn place() -> String {
    let Ok(file) = file() else { return "~/.local/state/polar/token".to_owned() };
    let home = std::env::home_dir();
    match home.as_ref().and_then(|home| file.strip_prefix(home).ok()) {
        Some(rest) => format!("~/{}", rest.display()),
        None => file.display().to_string(),
    }
}

/// 256 random bits in hex.
pub(crate) fn random_hex() -> Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
    Ok(hex::encode(bytes))
}

/// Beside the state of servers, not in it: a server may keep its state anywhere.
fn file() -> Result<PathBuf> {
    Ok(paths::state(None)?.join("token"))
}

fn kept_or_made(file: &Path) -> Result<String> {
    loop {
        if let Some(secret) = kept(file)? {
            return Ok(secret);
        }
        let folder = file.parent().context("it has no folder")?;
        paths::make_private(folder)?;
        // For this user alone from the start, and complete once it has its name.
        let mut made = tempfile::NamedTempFile::new_in(folder)?;
        writeln!(made, "{}", random_hex()?)?;
        made.as_file().sync_all()?;
        match made.persist_noclobber(file) {
            Err(refused) if refused.error.kind() != ErrorKind::AlreadyExists => {
                return Err(refused.error.into());
            }
            // Whoever came first, everybody takes what lies there now.
            _ => {}
        }
    }
}

fn kept(file: &Path) -> Result<Option<String>> {
    let found = match fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    ensure!(
        found.permissions().mode() & 0o077 == 0,
        "others may read it; delete it to get a new one, and start your servers again"
    );
    let secret = fs::read_to_string(file)?.trim().to_owned();
    ensure!(!secret.is_empty(), "it is empty; delete it to get a new one");
    Ok(Some(secret))
}

fn is_on_this_machine(address: &str) -> bool {
    let Ok(url) = Url::parse(&base_url(address)) else { return false };
    url.host_str().is_some_and(|host| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_gets_the_token_that_was_there_first() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/down/token");
        let made: Vec<String> = std::thread::scope(|scope| {
            let makers: Vec<_> =
                (0..8).map(|_| scope.spawn(|| kept_or_made(&file).unwrap())).collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        assert_eq!(made[0].len(), 64);
        assert!(made.iter().all(|token| *token == made[0]), "{made:?}");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let beside = fs::read_dir(file.parent().unwrap()).unwrap();
        assert_eq!(beside.count(), 1, "unfinished files stay");
    }

    #[test]
    fn promise_9_a_token_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "secret\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(kept_or_made(&file).unwrap_err().to_string().contains("others may read it"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(kept_or_made(&file).unwrap(), "secret");
    }

    #[test]
    fn promise_9_only_this_machine_is_told_the_users_own_token() {
        for near in ["localhost", "localhost:50051", "127.0.0.1:1", "http://[::1]:2/x"] {
            assert!(is_on_this_machine(near), "{near}");
        }
        for far in ["polar.example:50051", "10.0.0.1", "localhost.example", "http://[::2]", ""] {
            assert!(!is_on_this_machine(far), "{far}");
            assert_eq!(for_server(far, None).unwrap(), None, "{far}");
        }
        assert_eq!(for_server("far.example", Some("t".into())).unwrap().as_deref(), Some("t"));
    }

    #[test]
    fn a_node_of_another_machine_is_told_where_the_token_is() {
        let refused = of_node(Some("far.example:50051"), None).err().unwrap().to_string();
        for part in ["--token", "POLAR_TOKEN", "polar/token"] {
            assert!(refused.contains(part), "{refused}");
        }
        let given = of_node(Some("far.example:50051"), Some("t".into())).unwrap();
        assert_eq!((given.secret.as_str(), given.kept_in), ("t", None));
    }
}
