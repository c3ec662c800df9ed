//! What a container's own shell says of it: who commands run as, and which folders are there.

use crate::SandboxError;

pub(super) const ACTION: &str = "look at container";
/// Prints user and group, then `y` or `n` for each folder named: whether it is there.
/// With a shell alone, since an image may have little else.
pub(super) const SCRIPT: &str = r#"
    while read -r name id _; do
        case $name in Uid:|Gid:) printf '%s ' "$id";; esac
    done </proc/self/status
    for folder; do if [ -d "$folder" ]; then printf 'y '; else printf 'n '; fi; done"#;

#[derive(Debug, PartialEq)]
pub(super) struct Seen<'a> {
    /// User and group that commands run as.
    pub(super) owner: (u64, u64),
    pub(super) missing: Vec<&'a str>,
}

/// Reads what the script said. An answer that ends early was cut off, with the container or with
/// the connection to it, and says nothing against the image.
pub(super) fn seen<'a>(said: &str, folders: &[&'a str]) -> Result<Seen<'a>, SandboxError> {
    let words: Vec<&str> = said.split_ascii_whitespace().collect();
    let (ids, there) = words.split_at(words.len().min(2));
    let ids: Option<Vec<u64>> = ids.iter().map(|id| id.parse().ok()).collect();
    let is_known = there.iter().all(|word| matches!(*word, "y" | "n"));
    let Some(ids) = ids.filter(|_| is_known && there.len() <= folders.len()) else {
        return Err(SandboxError::new(ACTION, format!("its shell says {said:?}")));
    };
    match ids[..] {
        [user, group] if there.len() == folders.len() => {
            let missing = folders.iter().zip(there).filter(|(_, there)| **there == "n");
            Ok(Seen { owner: (user, group), missing: missing.map(|(folder, _)| *folder).collect() })
        }
        _ => Err(SandboxError::retryable(ACTION, format!("its shell was cut off behind {said:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Seen, seen};

    const FOLDERS: [&str; 2] = ["/work", "/home/polar"];

    #[test]
    fn a_whole_answer_says_who_commands_run_as_and_what_is_missing() {
        let missing = vec!["/home/polar"];
        assert_eq!(seen("1000 100 y n ", &FOLDERS).unwrap(), Seen { owner: (1000, 100), missing });
        assert_eq!(seen("0 0 y y", &FOLDERS).unwrap(), Seen { owner: (0, 0), missing: vec![] });
    }

    #[test]
    fn an_answer_that_ends_anywhere_before_its_end_can_be_asked_for_again() {
        let whole = "1000 100 y n";
        for end in 0..whole.len() {
            let problem = seen(&whole[..end], &FOLDERS).unwrap_err();
            assert!(problem.retryable, "{problem}");
        }
    }

    #[test]
    fn an_answer_of_another_kind_is_the_images_fault() {
        let missing_shell = "OCI runtime exec failed: exec: \"/bin/sh\": no such file or directory";
        for said in [missing_shell, "sh: syntax error", "0 0 y n y", "0 0 maybe"] {
            assert!(!seen(said, &FOLDERS).unwrap_err().retryable, "{said}");
        }
    }
}
