//! What to do about failures that a sandbox's closedness usually causes.

use polar_types::{Network, NetworkUse, RuntimeKind, RuntimeSpec};

/// What programs say when they find no network.
const NO_NETWORK: [&str; 9] = [
    "Temporary failure in name resolution",
    "Temporary failure resolving",
    "Name or service not known",
    "Could not resolve host",
    "unable to resolve host address",
    "Network is unreachable",
    "getaddrinfo EAI_AGAIN",
    "getaddrinfo ENOTFOUND",
    "failed to lookup address information",
];

/// What may mend a command that ended with this code and said this; empty when nothing is
/// known to. It continues a sentence.
pub(crate) fn failed_command(runtime: &RuntimeSpec, code: i32, said: &str) -> String {
    let mut hints = String::new();
    if code == 127 {
        hints.push_str(&missing_program(runtime));
    }
    if runtime.network == Network::None && NO_NETWORK.iter().any(|words| said.contains(words)) {
        hints.push_str(
            "; the sandbox reaches no host unless the task names it in `runtime.allowed_hosts` or \
             says `runtime.network: open`",
        );
    }
    hints
}

/// Hosts that were refused, which a task may have forgotten to allow; empty when there are none. It
/// continues a sentence.
pub(crate) fn refused_hosts(network: &NetworkUse) -> String {
    const MOST: usize = 5;
    let refused: Vec<_> = network.refused().map(|host| host.host.as_str()).collect();
    let more = refused.len().saturating_sub(MOST);
    match refused.get(..refused.len().min(MOST)) {
        None | Some([]) => String::new(),
        Some(named) => {
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let named = named.join(", ");
            format!("; refused were {named}{more}, which `runtime.allowed_hosts` does not name")
        }
    }
}

/// What may mend that a program is not found. It continues a sentence.
pub(crate) fn missing_program(runtime: &RuntimeSpec) -> String {
    match runtime.kind {
        RuntimeKind::Local => "; a local sandbox shows the machine's /usr, but nothing of /opt or \
            of home folders (pyenv, conda, ~/.local): install the program in /usr, make it in a \
            step of `runtime.prepare` (with its host in `runtime.allowed_hosts` if it is downloaded), or use \
            a docker image that has it"
            .to_owned(),
        RuntimeKind::Docker | RuntimeKind::Podman | RuntimeKind::Apptainer => {
            "; install it in the image or in a step of `runtime.prepare`".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::failed_command;
    use polar_types::{Network, RuntimeKind, RuntimeSpec};

    #[test]
    fn hints_fit_the_runtime_and_what_was_said() {
        let local = RuntimeSpec::of_kind(RuntimeKind::Local);
        let open = RuntimeSpec { network: Network::Open, ..local.clone() };
        let docker = RuntimeSpec::of_kind(RuntimeKind::Docker);
        let lookup = "curl: (6) Could not resolve host: example.org";
        assert!(failed_command(&local, 127, "").contains("/usr"));
        assert!(failed_command(&docker, 127, "").contains("image"));
        assert!(!failed_command(&docker, 127, "").contains("/usr"));
        assert!(failed_command(&local, 6, lookup).contains("runtime.network: open"));
        assert_eq!(failed_command(&open, 6, lookup), "");
        assert_eq!(failed_command(&local, 1, "no luck"), "");
    }
}
