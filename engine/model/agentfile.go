package model

import (
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// AgentFile is agent.hcl: the configuration of an agent. Everything else comes
// from the site. A field that is not declared is zero; what holds then is not known
// here, since it depends on the machine.
//
// An attribute whose name ends in _file or _dir is a path; one that does not begin
// with a slash is relative to the folder of its file.
type AgentFile struct {
	Identity    string           `hcl:"identity,optional" doc:"Host that it converges (default: the short name of the machine)."`
	DataDir     string           `hcl:"data_dir,optional" doc:"Folder of clone, keys, receipts, locks and suspensions (default: /var/lib/homestak-gitops, without root ~/.local/state/homestak-gitops)."`
	Listen      string           `hcl:"listen,optional" doc:"Address of the server for nodes and children (default: :44443); \"\" for none."`
	ServeImages bool             `hcl:"serve_images,optional" doc:"Downloads each image with a checksum once, into images of the data folder, for its host and the children."`
	ImagesMax   int              `hcl:"images_max,optional" doc:"Most that serve_images stores, in GiB. The least recently used goes first."`
	Repository  *AgentRepository `hcl:"repository,block" doc:"The repository of the site."`
	Parent      *AgentParent     `hcl:"parent,block" doc:"The agent above, for the agent of a child."`
	API         *AgentAPI        `hcl:"api,block" doc:"The API of the host, for the agent of a child, where the site does not define it."`
	SecretsFile string           `hcl:"secrets_file,optional" doc:"Secrets file, re-read on each pass (default: secrets.yaml of the unit's credentials, else /etc/homestak-gitops/secrets.yaml, else secrets.sops.yaml of the site)."`
	AgeKeyFile  string           `hcl:"age_key_file,optional" doc:"Age identities or an SSH key for secrets.sops.yaml, re-read on each pass (default: age-keys.txt of the unit's credentials, else /etc/homestak-gitops/age-keys.txt)."`
	Access      *AgentAccess     `hcl:"access,block" doc:"Keys of the server for people and programs, by default in server of the data folder. The first start creates missing files."`
	Web         *AgentWeb        `hcl:"web,block" doc:"The page for browsers, on a listener of its own."`
	Outputs     []string         `hcl:"output_folders,optional" doc:"Absolute folders in which outputs may be written, such as /etc/prometheus/targets."`
	DriftEvery  time.Duration    `hcl:"drift_every,optional" doc:"Time between full checks of the host, at least 1s."`
	Concurrency int              `hcl:"concurrency,optional" doc:"Steps at once."`
	Log         *AgentLog        `hcl:"log,block" doc:"What is logged, on stderr."`

	Ranges []AttrRange // where each declared attribute stands, by its path: repository.auth.token_file
}

// AgentRepository is the repository with the site.
type AgentRepository struct {
	URL     string        `hcl:"url,optional" doc:"https://…, ssh://…, user@host:path, or a folder of this machine."`
	Branch  string        `hcl:"branch,optional" doc:"Branch to follow."`
	Path    string        `hcl:"path,optional" doc:"Folder of the site in the repository (default: its root)."`
	Poll    time.Duration `hcl:"poll,optional" doc:"Time between polls, at least 1s."`
	MaxSize int           `hcl:"max_size,optional" doc:"Largest download, in MiB."`
	Auth    *AgentAuth    `hcl:"auth,block" doc:"How the repository is opened."`
}

// AgentAuth configures access to a repository. It names files; what is in them stays there.
type AgentAuth struct {
	TokenFile      string `hcl:"token_file,optional" doc:"https: file with a token or password."`
	Username       string `hcl:"username,optional" doc:"https: user of the token, if the server requires one."`
	KeyFile        string `hcl:"key_file,optional" doc:"ssh: file with a private key without passphrase."`
	KnownHostsFile string `hcl:"known_hosts_file,optional" doc:"ssh: file with the keys of the server, as ssh-keyscan prints them."`
	CAFile         string `hcl:"ca_file,optional" doc:"https: file with CA certificates (PEM; default: the system's)."`
}

// AgentParent is the agent above a child.
type AgentParent struct {
	URL         string        `hcl:"url,optional" doc:"URL of its server, such as https://192.0.2.10:44443."`
	Pins        []string      `hcl:"pins,optional" doc:"Pins of its key and the next one, as status prints them."`
	TokenFile   string        `hcl:"token_file,optional" doc:"File with the token for the server. The data folder keeps renewed tokens and pins until token_file, pins or url change."`
	ReportEvery time.Duration `hcl:"report_every,optional" doc:"Longest time between reports, at least 1s."`
}

// AgentAPI configures access to the API of the host.
type AgentAPI struct {
	TokenFile   string `hcl:"token_file,optional" doc:"File with the API token, user@realm!name=secret; re-read on each pass."`
	CAFile      string `hcl:"ca_file,optional" doc:"File with the host's CA certificate (PEM), such as /etc/pve/pve-root-ca.pem."`
	Fingerprint string `hcl:"fingerprint,optional" doc:"SHA-256 of the host's certificate, in hex, in place of ca_file."`
}

// AgentAccess names the keys of the server.
type AgentAccess struct {
	ReadKeyFile       string `hcl:"read_key_file,optional" doc:"File with the key for status, events, metrics and the page."`
	OperatorKeyFile   string `hcl:"operator_key_file,optional" doc:"File with the key that may also start a check, suspend and resume."`
	RepositoryKeyFile string `hcl:"repository_key_file,optional" doc:"File with the key that opens the repository."`
	HookKeyFile       string `hcl:"hook_key_file,optional" doc:"File with the secret of generic push notifications; those of others, such as hook-github.key, are in server of the data folder."`
}

// AgentWeb configures the page.
type AgentWeb struct {
	Listen          string `hcl:"listen,optional" doc:"Address of the page, such as :44480 (default: none). Without a certificate it must be local, such as 127.0.0.1:44480, behind a proxy."`
	CertificateFile string `hcl:"certificate_file,optional" doc:"File with a certificate (PEM) that browsers accept, re-read when it changes."`
	PrivateKeyFile  string `hcl:"private_key_file,optional" doc:"File with its private key."`
}

// AgentLog configures the log.
type AgentLog struct {
	Level  string `hcl:"level,optional" doc:"debug, info, warn or error."`
	Format string `hcl:"format,optional" doc:"text or json."`
}

// At says where an attribute was declared; the zero Range if it was not.
func (f *AgentFile) At(path string) diag.Range {
	for _, p := range f.Ranges {
		if p.Path == path {
			return p.At
		}
	}
	return diag.Range{}
}
