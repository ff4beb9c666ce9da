//! The image without a container engine: the files that the Dockerfile copies, in an empty root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kit::Container;
use serde_json::Value;

use super::documents::{container, documents_of, repository};

/// Words of the Dockerfile's instructions.
fn instructions() -> Vec<Vec<String>> {
    let text = fs::read_to_string(repository("deploy/Dockerfile")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

/// Each copied file with its destination.
fn copies() -> Vec<(String, PathBuf)> {
    let mut copies = Vec::new();
    for words in instructions().iter().filter(|words| words[0] == "COPY") {
        let [_, sources @ .., target] = words.as_slice() else { panic!("{words:?}") };
        assert!(target.ends_with('/'), "a directory: {target}");
        for source in sources.iter().filter(|source| *source != LINKS) {
            let name =
                source.strip_prefix(BINARIES).expect("binaries come from the directory of an architecture");
            copies.push((name.to_owned(), Path::new(target).join(name)));
        }
    }
    copies
}

/// Path of `hack/build`'s binaries for an architecture. A builder that sets no architecture uses `dist` itself, with those for the
/// building machine.
const BINARIES: &str = "dist/${TARGETARCH}/";

/// Links of `hack/build`, to be copied unchanged.
const LINKS: &str = "dist/links/";

/// Path of the image's root in the kit's container, whose own root has the machine's programs.
const ROOT: &str = "/image";

/// Path of `command: [install-cni]` in the image, by its `PATH`.
fn command() -> PathBuf {
    let command = container()["command"][0].as_str().unwrap().to_owned();
    let environment = instructions().into_iter().filter(|words| words[0] == "ENV");
    let mut paths = environment.filter_map(|words| Some(words[1].strip_prefix("PATH=")?.to_owned()));
    let directories = paths.next().expect("ENV PATH=");
    let mut found = directories.split(':').map(|directory| Path::new(directory).join(&command));
    found.find(|path| copies().iter().any(|(_, target)| target == path)).expect("the command is in PATH")
}

/// Copies the image into the kit's container, and makes the container's program one that enters the image as a runtime would: all
/// mounts of the manifest and no others, a read-only root, and root with the capabilities of the manifest's security context.
pub(super) fn enter(container: Container) -> Container {
    enter_with(container, &[])
}

/// As [`enter`], with further paths of the kit's container.
pub(crate) fn enter_with(container: Container, more: &[&str]) -> Container {
    let root = container.root().join(ROOT.trim_start_matches('/'));
    for (name, target) in copies() {
        put(&kit::binary(&name), &root, &target);
    }
    // Release binaries need no libraries. setpriv and the debug binaries do.
    let setpriv = which("setpriv");
    put(&setpriv, &root, &setpriv);
    let debug = copies().into_iter().map(|(name, _)| kit::binary(&name));
    debug.chain([setpriv]).flat_map(|program| libraries(&program)).for_each(|path| put(&path, &root, &path));
    let script = container.root().join("enter-image");
    kit::write_script(&script, &enter_script(&root, more));
    container.with_program(&script)
}

fn enter_script(root: &Path, more: &[&str]) -> String {
    let manifest = container();
    let mut mounts: Vec<String> =
        manifest["volumeMounts"].as_array().unwrap().iter().map(mount_path).collect();
    // Mounts of every container.
    mounts.extend(["/proc", "/dev", "/var/run/secrets/kubernetes.io/serviceaccount"].map(str::to_owned));
    mounts.extend(more.iter().map(|path| (*path).to_owned()));
    mounts.iter().for_each(|path| fs::create_dir_all(root.join(path.trim_start_matches('/'))).unwrap());
    let (mounts, command, setpriv) = (mounts.join(" "), command(), which("setpriv"));
    format!(
        "#!/bin/bash\nset -e\nmount --bind {ROOT} {ROOT}\n\
         for path in {mounts}; do mount --rbind $path {ROOT}$path; done\n\
         {}exec chroot {ROOT} {} {} {} \"$@\"\n",
        read_only(&manifest["securityContext"]),
        setpriv.display(),
        privileges(&manifest["securityContext"]),
        command.display(),
    )
}

fn mount_path(mount: &Value) -> String {
    mount["mountPath"].as_str().unwrap().to_owned()
}

fn read_only(context: &Value) -> String {
    assert_eq!(context["readOnlyRootFilesystem"], true);
    format!("mount -o remount,bind,ro {ROOT}\n")
}

/// setpriv's options for a security context.
fn privileges(context: &Value) -> String {
    assert_eq!((&context["runAsUser"], &context["runAsGroup"]), (&0.into(), &0.into()));
    assert_eq!(
        (&context["privileged"], &context["allowPrivilegeEscalation"]),
        (&false.into(), &false.into())
    );
    assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
    let added = context["capabilities"]["add"].as_array().unwrap().iter();
    let added: String = added.map(|name| format!(",+{}", name.as_str().unwrap().to_lowercase())).collect();
    format!("--bounding-set=-all{added} --inh-caps=-all --no-new-privs --groups=0")
}

fn put(file: &Path, root: &Path, target: &Path) {
    let target = root.join(target.strip_prefix("/").unwrap());
    fs::create_dir_all(target.parent().unwrap()).unwrap();
    kit::copy_program(file, &target);
}

fn which(name: &str) -> PathBuf {
    let found = ["/usr/bin", "/usr/sbin"].map(|directory| Path::new(directory).join(name));
    found.into_iter().find(|path| path.exists()).unwrap_or_else(|| panic!("no {name}"))
}

/// Libraries of a program, by absolute path; a static one has none.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    words.map(PathBuf::from).collect()
}

/// Istio's manifests start the taint controller by this path; the other links are for init containers, by name. None is below
/// `/opt/cni/bin`, from which the agent would install its own 10 MB on the node for each.
#[test]
fn the_images_have_the_other_programs_as_links_to_the_agent() {
    let taint = "/opt/local/bin/istio-cni-taint";
    let build = fs::read_to_string(repository("hack/build")).unwrap();
    for (link, target) in [
        (taint, "../../../usr/local/bin/install-cni"),
        ("/usr/local/bin/istio-iptables", "install-cni"),
        ("/usr/local/bin/istio-clean-iptables", "install-cni"),
    ] {
        assert!(kit::has_line(&build, &format!("ln -sfn {target} \"$links{link}\"")), "{build}");
        assert_eq!(resolved(Path::new(link), target), command(), "{link}");
    }
    for file in ["deploy/Dockerfile", "deploy/Dockerfile.ambient"] {
        let text = fs::read_to_string(repository(file)).unwrap();
        assert!(text.lines().any(|line| line == format!("COPY {LINKS} /")), "{file}");
    }
    let context = fs::read_to_string(repository(".dockerignore")).unwrap();
    assert!(context.lines().any(|line| line == format!("!{}", LINKS.trim_end_matches('/'))));
    let deployment = documents_of("istio-cni-taint.yaml").pop().unwrap();
    let command = &deployment["spec"]["template"]["spec"]["containers"][0]["command"];
    assert_eq!(*command, serde_json::json!([taint]));
}

/// Target of a relative link.
fn resolved(link: &Path, target: &str) -> PathBuf {
    let up = target.matches("../").count();
    let from = link.parent().unwrap().ancestors().nth(up).expect("it stays below the root");
    from.join(&target["../".len() * up..])
}

#[test]
fn the_image_has_the_release_binaries_and_nothing_else() {
    let from: Vec<_> = instructions().into_iter().filter(|words| words[0] == "FROM").collect();
    assert_eq!(from, [["FROM", "scratch"]]);
    let mut copies = copies();
    copies.sort();
    let expected = [("install-cni", "/usr/local/bin/install-cni"), ("istio-cni", "/opt/cni/bin/istio-cni")];
    assert_eq!(copies, expected.map(|(name, target)| (name.to_owned(), PathBuf::from(target))));
    assert_eq!(command(), Path::new("/usr/local/bin/install-cni"));
    let entry = instructions().into_iter().find(|words| words[0] == "ENTRYPOINT").unwrap();
    assert_eq!(entry[1], r#"["/usr/local/bin/install-cni"]"#, "the same without a command");
    let build = fs::read_to_string(repository("hack/build")).unwrap();
    let context = fs::read_to_string(repository(".dockerignore")).unwrap();
    for (name, _) in copies {
        assert!(build.contains(&name), "hack/build makes {name}");
        for directory in ["dist", "dist/amd64", "dist/arm64"] {
            let kept = format!("!{directory}/{name}");
            assert!(context.lines().any(|line| line == kept), "the build's context has {directory}/{name}");
        }
    }
}
