//! Programs that must be installed, and the packages they come in.

/// A program that is needed, and the Debian package it comes in.
pub type Tool = (&'static str, &'static str);

/// What making namespaces and running programs in them needs.
const BASIC: [Tool; 4] = [
    ("ip", "iproute2"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("taskset", "util-linux"),
];

/// Says which of these and the basic programs are absent, and the command that mends it.
///
/// # Errors
/// One is.
pub fn need(tools: &[Tool]) -> anyhow::Result<()> {
    let all = BASIC.iter().chain(tools);
    let absent: Vec<_> = all.filter(|(program, _)| !is_installed(program)).collect();
    if absent.is_empty() {
        return Ok(());
    }
    let programs: Vec<_> = absent.iter().map(|(program, _)| *program).collect();
    let mut packages: Vec<_> = absent.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    let verb = if programs.len() == 1 { "is" } else { "are" };
    anyhow::bail!(
        "{} {verb} not installed: try `apt-get install {}`",
        programs.join(" and "),
        packages.join(" ")
    )
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_named_with_its_package() {
        assert!(need(&[("sh", "dash")]).is_ok());
        let absent: [Tool; 3] = [("no-such-a", "one"), ("sh", "dash"), ("no-such-b", "one")];
        let error = need(&absent).unwrap_err().to_string();
        assert_eq!(error, "no-such-a and no-such-b are not installed: try `apt-get install one`");
    }
}
