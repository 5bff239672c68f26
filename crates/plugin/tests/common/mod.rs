//! Shared objects for tests: compiled here, built as a card file builds them.

#![allow(dead_code)] // each test binary uses a part of it

use picnic_core::config::Section;
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::registry::BuildContext;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with objects.
pub(crate) struct Workshop(tempfile::TempDir);

impl Workshop {
    /// A folder, if there is a C compiler; `test` names the test for the skip message.
    pub(crate) fn open(test: &str) -> Option<Self> {
        if Command::new("cc").arg("--version").output().is_err() {
            picnic_testing::skip(test, "there is no C compiler");
            return None;
        }
        Some(Workshop(tempfile::tempdir().unwrap()))
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles C text to `NAME.so`.
    pub(crate) fn compile(&self, name: &str, text: &str, options: &[&str]) {
        let source = self.path(&format!("{name}.c"));
        std::fs::write(&source, text).unwrap();
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
        let output = Command::new("cc")
            .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
            .args(["-I", include, "-o"])
            .arg(self.path(&format!("{name}.so")))
            .arg(&source)
            .args(options)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
    }

    /// Compiles one of the sources of these tests.
    pub(crate) fn object(&self, name: &str, options: &[&str]) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects");
        let text = std::fs::read_to_string(path.join(format!("{name}.c"))).unwrap();
        self.compile(name, &text, options);
    }

    /// Builds the function of a section.
    pub(crate) fn build(&self, text: &str) -> Result<Box<dyn Function>, ConfigError> {
        let section = Section::from_text("function", text)?;
        assert_eq!(section.name(), picnic_plugin::ENTRY.name);
        picnic_plugin::ENTRY.build(&section, &self.context())
    }

    pub(crate) fn context(&self) -> BuildContext {
        BuildContext { directory: self.folder().into(), wires: 2, ..BuildContext::default() }
    }

    /// The error of a refused section, without the folder.
    pub(crate) fn refusal(&self, text: &str) -> String {
        match self.build(text) {
            Ok(_) => format!("accepted: {text}"),
            Err(error) => error.to_string().replace(&format!("{}/", self.folder().display()), ""),
        }
    }

    /// Lines that objects wrote to `log`.
    pub(crate) fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}
