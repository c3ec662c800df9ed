//! Which version of a program is the newest that this machine can run.

use super::super::adapter::HarnessAdapter;
use super::super::recipe::{InstallRecipe, Package};
use super::python::{Interpreter, PythonVersion};
use super::{InstallError, Installer, cache, create_dir};
use nodejs_semver::{Range, Version};
use serde_json::Value;

impl Installer {
    /// The newest released version of the adapter's program that can run here, as its
    /// registry has it. For npm that is the one tagged `latest`, or the newest one before it
    /// whose `engines` fit the Node that will run it; for PyPI the newest one that fits the
    /// Python. [`HarnessAdapter::with_version`] makes an adapter of it.
    pub async fn newest_version(&self, adapter: &HarnessAdapter) -> Result<String, InstallError> {
        let unknown = |problem: &str| InstallError::NoNewest {
            harness: adapter.name.clone(),
            problem: problem.to_owned(),
        };
        let Some(recipe) = &adapter.install else {
            return Err(unknown("its adapter has no `install`, so it is whatever the sandbox has"));
        };
        match recipe.program(&adapter.version) {
            Some(Package::Npm(name)) => self.newest_of_npm(adapter, recipe, name).await,
            Some(Package::Pip(name)) => self.newest_of_pip(adapter, recipe, name).await,
            None => Err(unknown(
                "no package of its `install` is pinned at the adapter's `version`; write there \
                 what the program's own package is pinned at",
            )),
        }
    }

    async fn newest_of_npm(
        &self,
        adapter: &HarnessAdapter,
        recipe: &InstallRecipe,
        name: &str,
    ) -> Result<String, InstallError> {
        let unknown =
            |problem: String| InstallError::NoNewest { harness: adapter.name.clone(), problem };
        let latest = self.npm_says(adapter, &["view", &format!("{name}@latest")]).await?;
        let latest = Release::read(&latest)
            .ok_or_else(|| unknown(format!("npm has no release of {name} tagged `latest`")))?;
        if !recipe.runs_on_node {
            return Ok(latest.version.to_string());
        }
        let node = self.node_version(adapter, recipe).await?;
        if latest.fits(&node) {
            return Ok(latest.version.to_string());
        }
        let older = format!("{name}@<{}", latest.version);
        let older = self.npm_says(adapter, &["view", &older]).await?;
        let older = older.as_array().into_iter().flatten().filter_map(Release::read);
        let fitting =
            older.filter(|release| !release.version.is_prerelease() && release.fits(&node));
        fitting.map(|release| release.version).max().map(|version| version.to_string()).ok_or_else(
            || {
                unknown(format!(
                    "no release of {name} runs on Node {node}; install a newer Node.js"
                ))
            },
        )
    }

    /// The Node that runs the program.
    async fn node_version(
        &self,
        adapter: &HarnessAdapter,
        recipe: &InstallRecipe,
    ) -> Result<Version, InstallError> {
        let said = match recipe.own_node() {
            Some(version) => version.to_owned(),
            None => {
                let versions = self.npm_says(adapter, &["version"]).await?;
                versions["node"].as_str().unwrap_or_default().to_owned()
            }
        };
        Version::parse(&said).map_err(|_| InstallError::NoNewest {
            harness: adapter.name.clone(),
            problem: format!("{said:?} is no version of Node"),
        })
    }

    /// The JSON that npm prints. For `view`, of the version and engines.
    async fn npm_says(
        &self,
        adapter: &HarnessAdapter,
        arguments: &[&str],
    ) -> Result<Value, InstallError> {
        create_dir(&self.root)?;
        let mut npm = self.npm_command();
        npm.args(arguments).arg("--json").current_dir(&self.root);
        if arguments.first() == Some(&"view") {
            npm.args(["version", "engines"]);
        }
        let output = npm
            .output()
            .await
            .map_err(|error| InstallError::NpmMissing { harness: adapter.name.clone(), error })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let (name, status) = (&adapter.name, output.status);
            return Err(InstallError::failed("npm", "find the versions of", name, status, &said));
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    async fn newest_of_pip(
        &self,
        adapter: &HarnessAdapter,
        recipe: &InstallRecipe,
        name: &str,
    ) -> Result<String, InstallError> {
        create_dir(&self.root)?;
        let oldest = recipe.python.as_deref().and_then(PythonVersion::parse);
        let oldest = oldest.unwrap_or(PythonVersion::ANY);
        let python = Interpreter::find(self, &adapter.name, oldest).await?;
        // The machine's own Python may lack pip; a virtual environment has it.
        let scratch =
            tempfile::tempdir_in(&self.root).map_err(|error| cache("use", &self.root, error))?;
        let mut pip = python.make_venv(&adapter.name, &scratch.path().join("venv")).await?;
        let report = pip
            .args(["--quiet", "--dry-run", "--no-deps", "--report", "-", "--", name])
            .output()
            .await
            .map_err(|error| cache("run pip in", scratch.path(), error))?;
        if !report.status.success() {
            let said = String::from_utf8_lossy(&report.stderr);
            let (name, status) = (&adapter.name, report.status);
            return Err(InstallError::failed("pip", "find the versions of", name, status, &said));
        }
        let report: Value = serde_json::from_slice(&report.stdout).unwrap_or_default();
        let version = report["install"][0]["metadata"]["version"].as_str();
        version.map(str::to_owned).ok_or_else(|| InstallError::NoNewest {
            harness: adapter.name.clone(),
            problem: format!("pip's report on {name} names no version"),
        })
    }
}

/// A version in the registry, and which Nodes its maker says it runs on.
struct Release {
    version: Version,
    node: Option<Range>,
}

impl Release {
    /// From what `npm view` says: an object, or a bare version when there are no engines.
    fn read(said: &Value) -> Option<Self> {
        let version = said.as_str().or_else(|| said["version"].as_str())?;
        let node = said["engines"]["node"].as_str();
        Some(Self {
            version: Version::parse(version).ok()?,
            node: node.and_then(|range| Range::parse(range).ok()),
        })
    }

    fn fits(&self, node: &Version) -> bool {
        self.node.as_ref().is_none_or(|range| range.satisfies(node))
    }
}
