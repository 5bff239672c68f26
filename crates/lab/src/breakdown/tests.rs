use super::perf::{Frame, Recording, Sample};
use super::*;
use picnic_testing::skip;

fn sample(core: usize, process: u32, functions: &[&str]) -> Sample {
    let frame = |name: &&str| Frame { function: (*name).into(), is_kernel: process != 9 };
    Sample { core, process, command: "x".into(), frames: functions.iter().map(frame).collect() }
}

#[test]
fn shares_add_up_and_give_time_per_packet() {
    let idle = sample(0, 0, &["do_idle"]);
    let samples = Samples(vec![
        idle.clone(),
        idle,
        sample(0, 1, &["tcp_v4_rcv"]),
        sample(0, 9, &["main", "[unknown]", "[unknown]"]),
        sample(1, 1, &["tcp_v4_rcv"]),
    ]);
    let events = [("RES".to_owned(), 50)].into_iter();
    let found = of_samples(&samples, 8, (vec![0], Some(1), 2.0, 1000), events, None).unwrap();
    assert_eq!((found.samples, found.busy_fraction()), (Some(4), 0.5));
    assert_eq!(found.components.iter().map(|part| part.fraction).sum::<f64>(), 1.0);
    let stack = found.components.iter().find(|part| part.component == "stack").unwrap();
    assert_eq!((stack.fraction, stack.ns_per_packet), (0.25, Some(500_000.0)));
    assert_eq!(found.events[0].per_packet, Some(0.05));
    assert_eq!(found.stacks[&["core 0", "x", "[unknown]", "main"].map(str::to_owned).to_vec()], 1);
    for core in ["core 0", "borrowed core 1"] {
        assert_eq!(found.stacks[&[core, "x", "tcp_v4_rcv_[k]"].map(str::to_owned).to_vec()], 1);
    }
}

#[test]
fn only_cores_of_the_host_are_sampled() {
    assert_eq!(asked_cores(None, 3, &[1, 0, 1], &[0, 1, 2, 3]).unwrap(), [0, 1]);
    assert_eq!(asked_cores(Some(&[2]), 3, &[0], &[0, 1, 2, 3]).unwrap(), [2]);
    for (asked, wanted) in [
        (&[0, 3][..], "cores: found 3, the borrowed core"),
        (&[7], "cores: found 7, allowed: cores 0, 1, 2"),
        (&[], "cores: found none"),
    ] {
        let error = asked_cores(Some(asked), 3, &[0], &[0, 1, 2, 3]).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn a_model_has_the_sums_of_its_components() {
    let text = "[card]\nborrowed_core = 4\n[[wire]]\nport = \"generator\"\nrate_pps = 100000\n\
        [host]\nqueues = 1\ntarget_cores = [0]\ncost_ns = 1000\n[interrupt]\npoll_usecs = 0\n";
    let file = picnic_host::sections().parse(text, None).unwrap();
    let profile = Profile::named("x5355").unwrap();
    let found = modelled(&file, picnic_host::registries(), &profile, 0.02).unwrap();
    assert_eq!((found.source, &found.cores[..]), ("modelled", &[0][..]));
    assert!((found.packets as f64 / 2000.0 - 1.0).abs() < 0.02, "{}", found.packets);
    let sum: f64 = found.components.iter().map(|part| part.fraction).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    let application = found.components.iter().find(|part| part.component == "application").unwrap();
    let ns = application.ns_per_packet.unwrap();
    assert!((ns / 1000.0 - 1.0).abs() < 0.02, "{ns}");
}

/// Samples and the kernel's own counts are of the same time, whatever else runs then.
#[test]
fn samples_agree_with_the_kernels_counts() {
    if let Err(why) = perf::check() {
        return skip("samples_agree_with_the_kernels_counts", &why.to_string());
    }
    let cores = topology::cores();
    let [core, ..] = cores[..] else { return };
    let spins = std::process::Command::new("taskset")
        .args(["-c", &core.to_string(), "sh", "-c", "while :; do :; done"])
        .spawn();
    let mut spins = spins.unwrap();
    let recording = Recorder { cores: vec![core] }.start();
    let meter = crate::meter::Meter::start();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let load = meter.stop();
    let samples = recording.and_then(Recording::stop);
    spins.kill().unwrap();
    spins.wait().unwrap();
    let found =
        of_samples(&samples.unwrap(), 0, (vec![core], None, 1.0, 0), std::iter::empty(), None);
    let found = found.unwrap();
    let share = load.cores.iter().find(|share| share.core == core).unwrap();
    let kernels = 1.0 - share.idle - share.steal;
    assert!((found.busy_fraction() - kernels).abs() < 0.25, "{found:?}, {share:?}");
    let user = found.components.iter().find(|part| part.component == "application").unwrap();
    assert!((user.fraction - share.user).abs() < 0.25, "{found:?}, {share:?}");
    assert_eq!(user.ns_per_packet, None);
}
