//! How a program is installed, and for which of its versions.

use super::AdapterError;
use super::adapter::HarnessAdapter;
use serde::{Deserialize, Serialize};

/// How to install a program. Done once per machine, outside any sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstallRecipe {
    /// npm packages with exact versions: `name@1.2.3`. They go to `node_modules`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub npm: Vec<String>,
    /// PyPI packages with exact versions: `name==1.2.3`. They go to a virtual environment,
    /// `venv`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pip: Vec<String>,
    /// The oldest Python that can run the packages of `pip`, for example `3.12`; any
    /// Python 3 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Whether Node runs the program. Its newest version is then the newest whose `engines`
    /// fit the `node` among `npm`, or the machine's own where there is none.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub runs_on_node: bool,
    /// Files that must be there afterwards, relative to the installation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<String>,
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_yes(truth: &bool) -> bool {
    *truth
}

/// A package and the registry it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Package<'a> {
    Npm(&'a str),
    Pip(&'a str),
}

impl InstallRecipe {
    /// The first package that is pinned at the adapter's version: the program itself, as
    /// against what it needs beside it.
    pub(super) fn program(&self, version: &str) -> Option<Package<'_>> {
        let npm = self.npm.iter().filter_map(|package| npm_pin(package));
        let pip = self.pip.iter().filter_map(|package| pip_pin(package));
        let npm = npm.map(|(name, at)| (Package::Npm(name), at));
        let pip = pip.map(|(name, at)| (Package::Pip(name), at));
        npm.chain(pip).find(|(_, at)| *at == version).map(|(package, _)| package)
    }

    /// The version of the Node it brings.
    pub(super) fn own_node(&self) -> Option<&str> {
        let pins = self.npm.iter().filter_map(|package| npm_pin(package));
        pins.filter(|(name, _)| *name == "node").map(|(_, version)| version).next()
    }

    /// The same recipe with the packages that are pinned at `from` pinned at `to`.
    fn moved(&self, from: &str, to: &str) -> Self {
        let npm = |package: &String| match npm_pin(package) {
            Some((name, version)) if version == from => format!("{name}@{to}"),
            _ => package.clone(),
        };
        let pip = |package: &String| match pip_pin(package) {
            Some((name, version)) if version == from => format!("{name}=={to}"),
            _ => package.clone(),
        };
        Self {
            npm: self.npm.iter().map(npm).collect(),
            pip: self.pip.iter().map(pip).collect(),
            ..self.clone()
        }
    }
}

impl HarnessAdapter {
    /// The same adapter for another version of its program. Installations of several
    /// versions lie side by side.
    pub fn with_version(&self, version: &str) -> Result<Self, AdapterError> {
        let refuse = |problem: String, mend: &str| {
            Err(AdapterError::new(&self.name, None, problem, mend.to_owned()))
        };
        let Some(recipe) = &self.install else {
            return refuse(
                "its version cannot be chosen, as it has no `install`".to_owned(),
                "use a sandbox that has the version you want",
            );
        };
        if recipe.program(&self.version).is_none() {
            return refuse(
                format!("no package of its `install` is pinned at its version {}", self.version),
                "write as `version` of the adapter what the program's own package is pinned at",
            );
        }
        let adapter = Self {
            version: version.to_owned(),
            install: Some(recipe.moved(&self.version, version)),
            ..self.clone()
        };
        match adapter.validate() {
            Ok(()) => Ok(adapter),
            Err(problem) => refuse(problem.problem, &problem.mend),
        }
    }
}

/// Name and version of `name@1.2.3`, also with a scope; no ranges, no tags, and nothing but
/// a name of the registry: npm would take a URL or a path as well, and run what it finds
/// there.
pub(super) fn npm_pin(package: &str) -> Option<(&str, &str)> {
    let (name, version) = package.rsplit_once('@')?;
    let numbers: Vec<_> = version.splitn(3, '.').collect();
    let bare = match name.strip_prefix('@') {
        Some(scoped) => scoped.replacen('/', "", 1),
        None => name.to_owned(),
    };
    let pinned = is_plain(&bare)
        && numbers.len() == 3
        && numbers[..2]
            .iter()
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
        && numbers[2].starts_with(|c: char| c.is_ascii_digit())
        && numbers[2].bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'+'));
    pinned.then_some((name, version))
}

/// Name and version of `name==1.2.3`; no ranges, wildcards, markers or URLs.
pub(super) fn pip_pin(package: &str) -> Option<(&str, &str)> {
    let (name, version) = package.split_once("==")?;
    let bare = match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
        Some((bare, extras)) if extras.split(',').all(is_plain) => bare,
        Some(_) => return None,
        None => name,
    };
    let pinned = is_plain(bare)
        && version.starts_with(|c: char| c.is_ascii_digit())
        && version.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'+' | b'!'));
    pinned.then_some((name, version))
}

fn is_plain(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::{npm_pin, pip_pin};

    #[test]
    fn only_pinned_names_of_the_registry_are_packages() {
        for good in ["pi@1.6.0", "@scope/pi.x@1.6.0", "node@22.23.3", "a_b@1.0.0-rc.1+b2"] {
            assert!(npm_pin(good).is_some(), "{good} was refused");
        }
        for bad in [
            "pi",
            "pi@latest",
            "pi@^1.0.0",
            "pi@1.2",
            "@1.2.3",
            "--x@1.2.3",
            "../x@1.2.3",
            "https://host/x@1.2.3",
            "git+ssh://host/x@1.2.3",
            "user/repo@1.2.3",
            "file:x@1.2.3",
            "@a/b/c@1.2.3",
            "npm:other@1.2.3",
            "a b@1.2.3",
        ] {
            assert!(npm_pin(bad).is_none(), "{bad} was accepted");
        }
        for good in ["a==1", "mini-swe-agent==2.4.6", "a_b[x,y]==1.0rc1", "a==1!2.0.post1+cu12"] {
            assert!(pip_pin(good).is_some(), "{good} was refused");
        }
        for bad in [
            "a",
            "a>=1",
            "a==1.*",
            "a==1,>0",
            "a===1",
            "a==1; python_version>'3'",
            "a @ https://host/a==1",
            "--index-url==1",
            "./a==1",
            "a[x/y]==1",
            "a==",
        ] {
            assert!(pip_pin(bad).is_none(), "{bad} was accepted");
        }
    }
}
