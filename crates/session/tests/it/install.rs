//! Programs are installed once, whole or not at all.

use crate::ground::within;
use polar_session::HarnessAdapter;
use polar_session::harness::Installer;
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Writes a script. Another process does it: a child that another test starts meanwhile would hold a file that
/// this one writes open for a moment, and what is open for writing cannot be run.
fn script(path: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"cat > "$1" && chmod 755 "$1""#, "sh"]).arg(path).stdin(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

/// A stand-in for npm that counts its runs; `does` is what it does in the folder.
fn npm(folder: &Path, does: &str) -> PathBuf {
    let path = folder.join("npm");
    let log = folder.join("runs").display().to_string();
    script(&path, &format!("#!/bin/sh\necho \"$@\" >> {log}\n{does}\n"));
    path
}

fn runs(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("runs")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn adapter(package: &str) -> HarnessAdapter {
    let adapter = json!({
        "name": "mine", "version": "1.2.3", "provider": "any", "model": "m",
        "install": {"npm": [package], "expect": ["node_modules/agent"]},
        "command": ["{{ bin }}/agent"],
    });
    HarnessAdapter::from_json("mine", &adapter).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sessions_at_once_install_once() {
    let folder = tempfile::tempdir().unwrap();
    let npm = npm(folder.path(), "mkdir -p node_modules && touch node_modules/agent");
    let installer = Installer::new(folder.path()).with_npm(npm);
    let adapter = adapter("agent@1.2.3");
    assert!(!installer.is_installed(&adapter));
    let many = (0..8).map(|_| {
        let (installer, adapter) = (installer.clone(), adapter.clone());
        tokio::spawn(async move { installer.ensure(&adapter).await.unwrap().unwrap().folder })
    });
    let mut folders = Vec::new();
    for installed in many.collect::<Vec<_>>() {
        folders.push(within(installed).await.unwrap());
    }
    folders.dedup();
    assert_eq!(folders.len(), 1);
    assert!(folders[0].join("node_modules/agent").exists());
    assert!(installer.is_installed(&adapter));
    let runs = runs(folder.path());
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert!(runs[0].ends_with("-- agent@1.2.3"), "{runs:?}");
}

#[tokio::test]
async fn another_recipe_of_the_same_name_has_a_folder_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let npm = npm(folder.path(), "mkdir -p node_modules && touch node_modules/agent");
    let installer = Installer::new(folder.path()).with_npm(npm);
    let one = installer.ensure(&adapter("agent@1.2.3")).await.unwrap().unwrap();
    let other = installer.ensure(&adapter("fork@1.2.3")).await.unwrap().unwrap();
    assert_ne!(one, other);
}

#[tokio::test]
async fn a_failed_installation_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = adapter("agent@1.2.3");
    let fails = npm(folder.path(), "touch half-made; echo 'E404 not found' >&2; exit 1");
    let error = Installer::new(folder.path()).with_npm(fails).ensure(&adapter).await.unwrap_err();
    assert!(error.to_string().contains("E404 not found"), "{error}");

    let lacks = npm(folder.path(), "true");
    let error = Installer::new(folder.path()).with_npm(lacks).ensure(&adapter).await.unwrap_err();
    assert!(error.to_string().contains("node_modules/agent is missing"), "{error}");

    let absent = folder.path().join("no-npm");
    let error = Installer::new(folder.path()).with_npm(absent).ensure(&adapter).await.unwrap_err();
    assert!(error.to_string().contains("install Node.js 20"), "{error}");

    let works = npm(folder.path(), "mkdir -p node_modules && touch node_modules/agent");
    let installer = Installer::new(folder.path()).with_npm(works);
    assert!(!installer.is_installed(&adapter));
    let done = installer.ensure(&adapter).await.unwrap().unwrap();
    assert!(!done.folder.join("half-made").exists());
}

/// A stand-in for npm that knows the releases of one package, as `npm view` tells them.
fn registry(folder: &Path, node: &str, latest: &str, older: &str) -> PathBuf {
    npm(
        folder,
        &format!(
            "case \"$*\" in
             version*) echo '{{\"node\": \"{node}\", \"npm\": \"11.0.0\"}}' ;;
             'view agent@latest'*) echo '{latest}' ;;
             'view agent@<'*) echo '{older}' ;;
             *) exit 1 ;;
             esac"
        ),
    )
}

const LATEST: &str = r#"{"version": "2.10.0", "engines": {"node": "^22.19 || >=24"}}"#;
const OLDER: &str = r#"[{"version": "2.2.0", "engines": {"node": ">=20"}}, "1.0.0",
    {"version": "2.9.0", "engines": {"node": ">=20.6"}},
    {"version": "2.9.9-beta.1", "engines": {"node": ">=20"}},
    {"version": "2.9.8", "engines": {"node": ">=21"}}]"#;

fn installs(recipe: serde_json::Value) -> HarnessAdapter {
    let adapter = json!({
        "name": "mine", "version": "1.2.3", "provider": "any", "model": "m",
        "install": recipe, "command": ["{{ bin }}/agent"],
    });
    HarnessAdapter::from_json("mine", &adapter).unwrap()
}

#[tokio::test]
async fn the_newest_version_is_one_that_the_program_s_node_can_run() {
    let cases = [
        ("24.1.0", json!({"npm": ["agent@1.2.3"]}), "2.10.0"),
        ("20.9.0", json!({"npm": ["agent@1.2.3"]}), "2.9.0"),
        ("18.0.0", json!({"npm": ["agent@1.2.3"]}), "1.0.0"),
        ("20.9.0", json!({"npm": ["agent@1.2.3", "node@22.23.3"]}), "2.10.0"),
        ("20.9.0", json!({"npm": ["agent@1.2.3"], "runs_on_node": false}), "2.10.0"),
    ];
    for (node, recipe, newest) in cases {
        let folder = tempfile::tempdir().unwrap();
        let installer =
            Installer::new(folder.path()).with_npm(registry(folder.path(), node, LATEST, OLDER));
        let said = installer.newest_version(&installs(recipe.clone())).await.unwrap();
        assert_eq!(said, newest, "Node {node}, {recipe}");
    }
}

#[tokio::test]
async fn a_newest_version_that_cannot_be_told_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let older = r#"[{"version": "1.0.0", "engines": {"node": ">=20"}}]"#;
    let npm = registry(folder.path(), "16.0.0", LATEST, older);
    let installer = Installer::new(folder.path()).with_npm(npm);
    let cases = [
        (installs(json!({"npm": ["agent@1.2.3"]})), "no release of agent runs on Node 16.0.0"),
        (installs(json!({"npm": ["agent@1.0.0"]})), "pinned at the adapter's `version`"),
        (installs(json!({"npm": ["other@1.2.3"]})), "could not find the versions of mine"),
        (HarnessAdapter::shipped("shell").unwrap(), "no `install`"),
    ];
    for (adapter, problem) in cases {
        let error = installer.newest_version(&adapter).await.unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[tokio::test]
async fn versions_lie_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let npm = npm(folder.path(), "mkdir -p node_modules && touch node_modules/agent");
    let installer = Installer::new(folder.path()).with_npm(npm);
    let pinned = installs(json!({"npm": ["node@22.23.3", "@a/agent@1.2.3", "agent-tui@1.2.3"]}));
    let other = pinned.with_version("1.3.0").unwrap();
    assert_eq!(other.version, "1.3.0");
    let one = installer.ensure(&pinned).await.unwrap().unwrap();
    let two = installer.ensure(&other).await.unwrap().unwrap();
    assert_ne!(one.folder, two.folder);
    assert!(installer.is_installed(&pinned) && installer.is_installed(&other));
    let runs = runs(folder.path());
    assert!(runs[1].ends_with("-- node@22.23.3 @a/agent@1.3.0 agent-tui@1.3.0"), "{runs:?}");

    let error = pinned.with_version("latest").unwrap_err();
    assert!(error.to_string().contains("no exact version"), "{error}");
    let error = HarnessAdapter::shipped("shell").unwrap().with_version("2").unwrap_err();
    assert!(error.to_string().contains("no `install`"), "{error}");
    let error = installs(json!({"npm": ["agent@1.0.0"]})).with_version("2.0.0").unwrap_err();
    assert!(error.to_string().contains("pinned at its version 1.2.3"), "{error}");
}

/// A stand-in for a Python of this version and prefix, whose environments' pip says `report`.
fn python(folder: &Path, version: &str, prefix: &str, report: &str) -> PathBuf {
    let path = folder.join("python3");
    let (here, place) = (folder.display(), path.display());
    let within = format!("#!/bin/sh\necho \"$@\" >> {here}/runs\ncat {here}/report\n");
    let answer = format!(
        r#"{{"executable": "{place}", "version": [{version}], "prefix": "{prefix}", "makes_venvs": true}}"#
    );
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in\n-I*) cat {here}/answer ;;\n\
         '-m venv '*) mkdir -p \"$3/bin\" && cp {here}/within \"$3/bin/python\" ;;\n\
         *) exit 1 ;;\nesac\n"
    );
    let files = [("report", report), ("answer", &answer), ("within", &within), ("python3", &text)];
    for (name, content) in files {
        script(&folder.join(name), content);
    }
    path
}

fn from_pypi() -> HarnessAdapter {
    installs(json!({"pip": ["agent==1.2.3", "agent-tools==1.2.3"], "python": "3.12"}))
}

#[tokio::test]
async fn a_program_from_pypi_is_installed_with_a_python_that_its_sandbox_can_be_shown() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = from_pypi();
    let python = python(folder.path(), "3, 13", "/opt/pythons/3.13", "");
    let installer = Installer::new(folder.path()).with_python(python);
    let made = installer.ensure(&adapter).await.unwrap().unwrap();
    let runs = runs(folder.path());
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert!(runs[0].ends_with("-- agent==1.2.3 agent-tools==1.2.3"), "{runs:?}");
    assert_eq!(made.shown(), [made.folder.clone(), PathBuf::from("/opt/pythons/3.13")]);
    assert_eq!(installer.ensure(&adapter).await.unwrap().unwrap(), made, "found again");

    // A Python that is gone takes its environments with it.
    fs::remove_file(made.folder.join("venv/bin/python")).unwrap();
    assert!(!installer.is_installed(&adapter));
}

#[tokio::test]
async fn a_sandbox_is_not_shown_what_it_has_nor_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = from_pypi();
    let system = python(folder.path(), "3, 12", "/usr", "");
    let made = Installer::new(folder.path()).with_python(system).ensure(&adapter).await;
    assert_eq!(made.as_ref().unwrap().as_ref().unwrap().shown().len(), 1, "{made:?}");

    let other = tempfile::tempdir().unwrap();
    let around = python(other.path(), "3, 12", &other.path().display().to_string(), "");
    let installer = Installer::new(other.path()).with_python(around);
    let error = installer.ensure(&adapter).await.unwrap_err();
    assert!(error.to_string().contains("also holds Polar's cache"), "{error}");
}

#[tokio::test]
async fn a_python_that_is_too_old_is_named_with_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let old = python(folder.path(), "3, 11", "/usr", "");
    let installer = Installer::new(folder.path()).with_python(old.clone());
    let error = installer.ensure(&from_pypi()).await.unwrap_err().to_string();
    for part in ["3.12 or newer", &format!("{} (3.11)", old.display()), "uv python install 3.12"] {
        assert!(error.contains(part), "{part} is missing: {error}");
    }
    let installer = Installer::new(folder.path()).with_python(folder.path().join("absent"));
    let error = installer.ensure(&from_pypi()).await.unwrap_err().to_string();
    assert!(error.contains("no Python at all"), "{error}");
}

#[tokio::test]
async fn the_newest_version_of_pypi_is_pip_s_own_choice() {
    let folder = tempfile::tempdir().unwrap();
    let report = r#"{"install": [{"metadata": {"name": "agent", "version": "1.4.0"}}]}"#;
    let python = python(folder.path(), "3, 12", "/usr", report);
    let installer = Installer::new(folder.path()).with_python(python);
    let newest = installer.newest_version(&from_pypi()).await.unwrap();
    assert_eq!(newest, "1.4.0");
    let left = fs::read_dir(folder.path().join("harness")).unwrap().count();
    assert_eq!(left, 0, "the environment that asked is gone");
    let moved = from_pypi().with_version(&newest).unwrap().install.unwrap();
    assert_eq!(moved.pip, ["agent==1.4.0", "agent-tools==1.4.0"]);
}
