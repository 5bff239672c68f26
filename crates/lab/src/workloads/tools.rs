//! Programs that must be installed, and their packages.

use crate::experiment::LabError;

/// A required program, and its Debian package.
pub type Tool = (&'static str, &'static str);

/// Programs for making namespaces and running programs in them.
const BASIC: [Tool; 5] = [
    ("ip", "iproute2"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("taskset", "util-linux"),
    ("sysctl", "procps"),
];

/// Checks for root, these and the basic programs; an error has the command to install missing ones.
///
/// # Errors
/// [`LabError::Unavailable`].
pub fn need(tools: &[Tool]) -> Result<(), LabError> {
    if !rustix::process::geteuid().is_root() {
        let message = "making network namespaces needs root: try it with `sudo`";
        return Err(LabError::Unavailable(message.into()));
    }
    installed(tools)
}

/// Checks the requirements of the kernel engine.
///
/// # Errors
/// [`LabError::Unavailable`].
pub fn need_kernel_engine(is_built: bool) -> Result<(), LabError> {
    if !is_built || !rustix::process::geteuid().is_root() {
        let why = "it needs root, and clang when picnic was built".to_owned();
        return Err(LabError::Unavailable(why));
    }
    Ok(())
}

/// As [`need`], without root.
pub(super) fn installed(tools: &[Tool]) -> Result<(), LabError> {
    need_all(&[&BASIC, tools].concat())
}

/// Checks for these programs only.
pub(crate) fn need_all(tools: &[Tool]) -> Result<(), LabError> {
    let absent: Vec<_> = tools.iter().filter(|(program, _)| !is_installed(program)).collect();
    if absent.is_empty() {
        return Ok(());
    }
    let programs: Vec<_> = absent.iter().map(|(program, _)| *program).collect();
    let mut packages: Vec<_> = absent.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    let verb = if programs.len() == 1 { "is" } else { "are" };
    let named = match &programs[..] {
        [one] => (*one).into(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
        [] => String::new(),
    };
    let packages = packages.join(" ");
    Err(LabError::Unavailable(format!(
        "{named} {verb} not installed: try `apt-get install {packages}`"
    )))
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_reported_with_their_package() {
        assert!(installed(&[("sh", "dash")]).is_ok());
        let absent: [Tool; 3] = [("no-such-a", "one"), ("sh", "dash"), ("no-such-b", "one")];
        let error = installed(&absent).unwrap_err().to_string();
        assert_eq!(
            error,
            "unavailable: no-such-a and no-such-b are not installed: try `apt-get install one`"
        );
        let absent: [Tool; 3] = ["no-such-a", "no-such-b", "no-such-c"].map(|name| (name, "one"));
        let error = installed(&absent).unwrap_err().to_string();
        assert!(error.contains("no-such-a, no-such-b and no-such-c are not"), "{error}");
    }
}
