package model

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Site is everything a commit declares, decoded and with its references checked.
// Nothing in it depends on a host, on time or on the environment.
type Site struct {
	Name        string      `hcl:"name,label"`
	Domain      string      `hcl:"domain,optional" doc:"DNS domain of all nodes."`
	Timezone    string      `hcl:"timezone,optional" doc:"Time zone of all nodes, such as Europe/Berlin."`
	DNS         []string    `hcl:"dns,optional" doc:"Name servers."`
	Gateway     string      `hcl:"gateway,optional" doc:"Default gateway of nodes with a static address."`
	Packages    []string    `hcl:"packages,optional" doc:"Packages on every node, before those of posture and spec."`
	Bridge      string      `hcl:"bridge,optional" doc:"Bridge of nics that name none."`
	VMUser      string      `hcl:"vm_user,optional" doc:"User that is created in every guest."`
	ServerURL   string      `hcl:"server_url,optional" doc:"URL where children reach the server of this site."`
	MaxDeletes  *int        `hcl:"max_deletes,optional" doc:"Most managed guests that one pass may delete (default: 3)."`
	VMIDRanges  []VMIDRange `hcl:"vmid_range,block" doc:"VMIDs that this site may use."`
	VMIDDefault string      `hcl:"vmid_default,optional" doc:"Range of nodes without vmid_range, if there are several."`
	Naming      *Naming     `hcl:"naming,block" doc:"Rules for the names of nodes."`
	Upgrade     *upgrade    `hcl:"upgrade,block" doc:"When children get the program of their parent. Without it, all get it at once."`
	References  *References `hcl:"references,block" doc:"Files and repositories that are searched before a guest is removed. While one has its name, address or VMID as a whole word, or cannot be read, the guest stays."`
	Backup      *Backup     `hcl:"backup,block" doc:"Backups of all nodes, unless a node or its manifest declares others."`
	Owner       string      `hcl:"owner,optional" doc:"Default for nodes, after the manifest's."`
	Purpose     string      `hcl:"purpose,optional" doc:"Default for nodes, after the manifest's."`
	Services    []string    `hcl:"services,optional" doc:"Default for nodes, after the manifest's."`
	Stacks      []string    `hcl:"stacks,optional" doc:"Default for nodes, after the manifest's."`
	ReviewBy    string      `hcl:"review_by,optional" quoted:"true" doc:"Default for nodes, after the manifest's."`
	StorageTier string      `hcl:"storage_tier,optional" doc:"Default for nodes, after the manifest's."`

	At         diag.Range
	Hosts      map[string]*Host
	Presets    map[string]*Preset
	Postures   map[string]*Posture
	Specs      map[string]*Spec
	Manifests  map[string]*Manifest
	Objects    State // blocks that are kinds of their own, not yet bound to a host
	Jobs       map[string]*Job
	Notify     map[string]*Notify
	Outputs    map[string]*Output
	Packs      []Pack
	Waivers    []Waiver
	Removed    Removals            // what happens to guests whose nodes left the site, where a block says it
	Moved      map[Address]Address // former addresses of guests → those of the nodes that have them now
	Secrets    *Secrets
	Kinds      Kinds
	Local      *LocalHost         // what the machine of an agent knows of its own host; nil elsewhere
	Left       string             // the child that left the site, or its parent: nothing is to be on it; "" usually
	Suspended  []string           // manifests that are left as they are on every host, beside those that say so themselves
	Resolved   map[string]*Want   // what the hosts and children shall hold, where that was worked out while loading; only read
	Located    map[Address]string // where each deployed node is, likewise; see Want.Elsewhere
	SourceHash string             // over all files that were read; changes with any byte of them
}

// References names files beside the site that may refer to guests.
type References struct {
	Paths        []string `hcl:"paths,optional" doc:"Files and folders: relative ones of the site, absolute ones of the machine that makes the pass, read as its user. Links out of a folder, devices, sockets and pipes are errors."`
	Repositories []string `hcl:"repositories,optional" doc:"At most eight git repositories, such as https://git.example/docs.git or git@git.example:docs.git#main: the newest commit of the default branch, or of the one after #, without submodules and git-lfs."`
	Key          string   `hcl:"key,optional" secret:"true" doc:"ssh: private key without passphrase (default: key_file of agent.hcl, or the user's)."`
	HostKey      string   `hcl:"host_key,optional" doc:"ssh: keys of the servers, as ssh-keyscan prints them (default: known_hosts_file of agent.hcl, or the user's)."`
	Token        string   `hcl:"token,optional" secret:"true" doc:"https: token that may read. All repositories must then be on one server."`

	Missing []string // secrets whose value is not known here
}

// Removed says what happens to a guest whose node left the site.
type Removed struct {
	Destroy bool `hcl:"destroy" doc:"false gives the guest up: only its ownership tag is removed. true destroys it, even if it was adopted."`
}

// Removals are the removed blocks of a site, by the address that each names.
type Removals map[Address]Removed

// Of returns the block that decides what happens to a guest. A block that gives a node with count up counts for its
// instances, such as web-2; one that destroys counts for the guest that it names alone. An instance of for_each has a name
// that another node may have, such as web-old, so it needs a block of its own.
func (r Removals) Of(guest Address) (block Removed, found bool) {
	if block, found = r[guest]; found {
		return block, true
	}
	end := strings.LastIndexByte(guest.Name, '-')
	if n, err := strconv.Atoi(guest.Name[end+1:]); end < 0 || err != nil || n < 1 {
		return Removed{}, false
	}
	block, found = r[Address{guest.Kind, guest.Name[:end]}]
	if block.Destroy {
		return Removed{}, false
	}
	return block, found
}

// Meant returns the first block that would give a guest up if it named another type, or counted for instances of for_each;
// the zero address if none does.
func (r Removals) Meant(guest Address) (first Address) {
	if _, found := r.Of(guest); found {
		return first
	}
	for addr, b := range r {
		if !b.Destroy && (addr.Name == guest.Name || strings.HasPrefix(guest.Name, addr.Name+"-")) && (first == Address{} || addr.Compare(first) < 0) {
			first = addr
		}
	}
	return first
}

// Moved gives the guest of a former node to another one.
type Moved struct {
	From string `hcl:"from" doc:"node.NAME, or \"NAME-KEY\" for one instance of count or for_each."`
	To   string `hcl:"to" doc:"Node that has its guest now, perhaps in another manifest. Only the name of the guest changes."`
}

// VMIDRange is an inclusive range of VMIDs with a name.
type VMIDRange struct {
	Name string `hcl:"name,label"`
	From int    `hcl:"from" doc:"First VMID of the range."`
	To   int    `hcl:"to" doc:"Last VMID of the range."`
}

// Naming restricts names of nodes.
type Naming struct {
	Pattern string `hcl:"pattern" doc:"Regular expression (RE2) that a whole node name must match."`
}

// Host is a PVE host or cluster, the root of a tree or below another one.
type Host struct {
	Name        string    `hcl:"name,label"`
	Parent      string    `hcl:"parent,optional" doc:"host.NAME, or node.NAME of type pve, whose agent serves this one. Without it, its agent follows the repository."`
	API         string    `hcl:"api,optional" doc:"URL of the API without path, such as https://192.0.2.10:8006. Required without parent."`
	Server      string    `hcl:"server,optional" doc:"URL where hosts below reach its agent's server (default: port 44443 at the address of api)."`
	Node        string    `hcl:"node,optional" doc:"Name of the PVE node (default: the host's name)."`
	Nodes       []string  `hcl:"nodes,optional" doc:"PVE nodes of a cluster where guests may live. A new guest goes where there is most room."`
	APIToken    string    `hcl:"api_token,optional" secret:"true" doc:"API token, user@realm!name=secret (default: secret.api_tokens[\"NAME\"])."`
	Fingerprint string    `hcl:"fingerprint,optional" doc:"SHA-256 of the host's certificate, in hex."`
	CA          string    `hcl:"ca,optional" doc:"File of the site with the host's CA certificate (PEM)."`
	InsecureTLS bool      `hcl:"insecure_tls,optional" doc:"Accept any certificate; a warning, never needed."`
	Storage     *Storage  `hcl:"storage,block" doc:"Default storages."`
	Bridge      string    `hcl:"bridge,optional" doc:"Bridge of nics that name none."`
	Pool        string    `hcl:"pool,optional" doc:"Resource pool of all guests on this host."`
	SSH         *HostSSH  `hcl:"ssh,block" doc:"How the host itself is reached."`
	Spec        string    `hcl:"spec,optional" ref:"spec" doc:"What its machine should become."`
	Hardware    *Hardware `hcl:"hardware,block" doc:"Hardware of the machine; for policies."`
	Capacity    *Capacity `hcl:"capacity,block" doc:"How much of each PVE node new guests may take, on clusters and on hosts with this block."`

	At           diag.Range
	Ranges       []AttrRange
	TokenMissing bool   // the token is declared but its value is not known here
	Local        bool   // it is the machine on which its agent runs, which alone knows its token and certificate: a node, or a host without api
	CAPEM        []byte // contents of the file CA
	PublicKey    string // a line of authorized_keys for its new guests, beside those of the site; "" for none
}

// LocalHost has what the machine of an agent knows of its host in addition to the site: how to open the API, and the
// key for its guests. The site takes precedence.
type LocalHost struct {
	Identity    string
	APIToken    string
	Fingerprint string
	CAPEM       []byte
	Key         string // private, as ssh-keygen writes it
	PublicKey   string // the public half, as a line of authorized_keys
}

// Complete adds to a host what it lacks, if it is the one.
func (l *LocalHost) Complete(h *Host) {
	if l == nil || l.Identity != h.Name {
		return
	}
	h.APIToken = cmp.Or(h.APIToken, l.APIToken)
	h.TokenMissing = h.APIToken == ""
	if h.Fingerprint == "" && h.CAPEM == nil && !h.InsecureTLS {
		h.Fingerprint, h.CAPEM = l.Fingerprint, l.CAPEM
	}
	if h.Local && l.Key != "" {
		h.SSH, h.PublicKey = &HostSSH{Key: l.Key}, l.PublicKey
	}
}

// Storage names a host's storages by what they hold.
type Storage struct {
	Disks    string `hcl:"disks,optional" doc:"Disks of guests."`
	Images   string `hcl:"images,optional" doc:"Disk images to import."`
	ISO      string `hcl:"iso,optional" doc:"ISO images."`
	Backups  string `hcl:"backups,optional" doc:"Backups."`
	Snippets string `hcl:"snippets,optional" doc:"Snippets."`
}

// HostSSH configures access to a host by SSH.
type HostSSH struct {
	Address string `hcl:"address,optional" doc:"Name or address (default: that of the API)."`
	Port    int    `hcl:"port,optional" doc:"Port."`
	User    string `hcl:"user,optional" doc:"User."`
	Key     string `hcl:"key,optional" secret:"true" doc:"Private key."`
	HostKey string `hcl:"host_key,optional" doc:"The host's public key."`
	Jump    bool   `hcl:"jump,optional" doc:"SSH and checks of guests go through the host."`
}

// Hardware is the hardware of a machine.
type Hardware struct {
	CPUCores int `hcl:"cpu_cores,optional" doc:"CPU cores."`
	MemoryGB int `hcl:"memory_gb,optional" doc:"Memory in GiB."`
}

// Capacity bounds what the guests of a PVE node may have in total, as multiples of what the node has.
type Capacity struct {
	MemoryOvercommit float64 `hcl:"memory_overcommit,optional" doc:"Memory of guests, as a multiple of the node's (default: 1)."`
	CoresOvercommit  float64 `hcl:"cores_overcommit,optional" doc:"Cores of guests, as a multiple of the node's (default: 4)."`
}

// Preset is a size.
type Preset struct {
	Name   string `hcl:"name,label"`
	Cores  int    `hcl:"cores" doc:"CPU cores."`
	Memory int    `hcl:"memory" doc:"Memory in MiB."`
	Disk   int    `hcl:"disk,optional" doc:"Root disk in GiB."`

	At diag.Range
}

// Posture is a level of security.
type Posture struct {
	Name     string    `hcl:"name,label"`
	Auth     *Auth     `hcl:"auth,block" doc:"How a node authenticates when it fetches its spec."`
	SSH      *SSHD     `hcl:"ssh,block" doc:"The SSH server of the node."`
	Sudo     *Sudo     `hcl:"sudo,block" doc:"Rights of administrators."`
	Fail2ban *Fail2ban `hcl:"fail2ban,block" doc:"Ban of addresses that guess passwords."`
	Packages []string  `hcl:"packages,optional" doc:"Packages that this posture adds."`

	At diag.Range
}

// Auth configures how a node authenticates.
type Auth struct {
	Method   string   `hcl:"method,optional" doc:"network, site_token or node_token."`
	Networks []string `hcl:"networks,optional" doc:"Networks that need no token under method network."`
}

// SSHD is the SSH server of a node.
type SSHD struct {
	Port                   int    `hcl:"port,optional" doc:"Port."`
	PermitRootLogin        string `hcl:"permit_root_login,optional" doc:"yes, no or prohibit-password."`
	PasswordAuthentication string `hcl:"password_authentication,optional" doc:"yes or no."`
}

// Sudo has the permissions of administrators.
type Sudo struct {
	NoPasswd bool `hcl:"nopasswd,optional" doc:"sudo asks for no password."`
}

// Fail2ban bans addresses that guess passwords.
type Fail2ban struct {
	Enabled bool `hcl:"enabled,optional" doc:"Install and enable it."`
}

// Spec is the desired inside of a node.
type Spec struct {
	Name     string     `hcl:"name,label"`
	Identity *Identity  `hcl:"identity,block" doc:"Names of the node."`
	Network  *Network   `hcl:"network,block" doc:"The address, at creation and inside. Without this block nothing is changed inside."`
	Access   *Access    `hcl:"access,block" doc:"Users, and how the node is entered."`
	Platform *Platform  `hcl:"platform,block" doc:"Packages and services."`
	Config   *Config    `hcl:"config,block" doc:"Settings of the system."`
	Run      *Run       `hcl:"run,block" doc:"When a node in mode pull fetches its spec and applies it."`
	Checks   []Check    `hcl:"check,block" doc:"A health check of the node."`
	At       diag.Range // where declared

	Ranges    []AttrRange // of its attributes and blocks
	Sensitive []string    // paths of attributes made from secrets, sorted
	Missing   []string    // secrets it needs whose value is not known here
}

// RangeOf finds where an attribute was declared: the attribute itself, else the block
// around it, else the spec.
func (s *Spec) RangeOf(path string) diag.Range {
	return (&Resource{At: s.At, Ranges: s.Ranges}).RangeOf(path)
}

// Identity is the identity of a node.
type Identity struct {
	Hostname string `hcl:"hostname,optional" doc:"Host name (default: the node's name)."`
	Domain   string `hcl:"domain,optional" doc:"Domain (default: the site's)."`
}

// Network is the address of a node.
type Network struct {
	IP      string   `hcl:"ip,optional" doc:"Address with prefix length, such as 10.0.12.5/24 (default: DHCP)."`
	Gateway string   `hcl:"gateway,optional" doc:"Gateway (default: the site's)."`
	DNS     []string `hcl:"dns,optional" doc:"Name servers (default: the site's)."`
}

// Access decides who may enter.
type Access struct {
	Posture     string `hcl:"posture,optional" ref:"posture" doc:"Security level (default: dev, where the site has it)."`
	Users       []User `hcl:"user,block" doc:"Users of the node."`
	Via         Via    `hcl:"via,optional" doc:"ssh (default, if there is a key and an address), agent (the guest agent of a VM) or exec (pct exec, for containers on the agent's machine)."`
	FormerUsers string `hcl:"former_users,optional" doc:"lock (default) or remove a user that leaves the spec. The home folder stays."`
}

// Via is the way into a guest.
type Via string

// The ways into a guest.
const (
	ViaSSH   Via = "ssh"
	ViaAgent Via = "agent"
	ViaExec  Via = "exec"
)

// User is a user of a node. SSHKeys nil means all keys of the site, empty none;
// each is the name of a key in the section ssh_keys, or a key itself.
type User struct {
	Name    string    `hcl:"name,label"`
	Sudo    bool      `hcl:"sudo,optional" doc:"May become root."`
	SSHKeys *[]string `hcl:"ssh_keys,optional" doc:"Keys that log in (default: all of the site); [] for none."`
	Groups  []string  `hcl:"groups,optional" doc:"Further groups."`
	Shell   string    `hcl:"shell,optional" doc:"Login shell."`
}

// Platform is the installed software and its services.
type Platform struct {
	Packages []string  `hcl:"packages,optional" doc:"Packages to install."`
	Services *Services `hcl:"services,block" doc:"systemd units."`
}

// Services are systemd units.
type Services struct {
	Enable  []string `hcl:"enable,optional" doc:"Units to enable and start."`
	Disable []string `hcl:"disable,optional" doc:"Units to stop and disable."`
}

// Config is settings of the system.
type Config struct {
	Timezone           string            `hcl:"timezone,optional" doc:"Time zone (default: the site's)."`
	Drift              string            `hcl:"drift,optional" doc:"revert or report."`
	PVE                *PVEConfig        `hcl:"pve,block" doc:"Settings of a PVE node."`
	Sysctl             map[string]string `hcl:"sysctl,optional" doc:"Kernel parameters."`
	Files              []File            `hcl:"file,block" doc:"Files, by path."`
	Repositories       []Repository      `hcl:"repository,block" doc:"Repositories that apt installs from, beside those of the image."`
	Commands           []Command         `hcl:"command,block" doc:"Commands to run."`
	Mounts             []Mount           `hcl:"mount,block" doc:"Mounts, by path."`
	Swap               int               `hcl:"swap,optional" doc:"Size of /swapfile in MiB (default: unmanaged). For a container, set swap in the node."`
	UnattendedUpgrades *bool             `hcl:"unattended_upgrades,optional" doc:"Install security updates every day (default: as in the image)."`
}

// PVEConfig is settings of a PVE node.
type PVEConfig struct {
	NoSubscription        bool   `hcl:"no_subscription,optional" doc:"Use Proxmox's repository without subscription, and disable the others."`
	RemoveSubscriptionNag bool   `hcl:"remove_subscription_nag,optional" doc:"Silence the reminder about subscriptions."`
	Restart               string `hcl:"restart,optional" doc:"When it restarts, such as 03:00-05:00 in its own time, if another kernel runs than the installed one of Proxmox VE (default: never)."`
	Bridge                string `hcl:"bridge,optional" doc:"Bridge, such as vmbr0, that takes over the card and addresses of the default route (default: none)."`
}

// Mount is the mount of a disk of the node, or of a folder of another machine.
type Mount struct {
	Path        string   `hcl:"path,label"`
	Disk        string   `hcl:"disk,optional" doc:"Disk block of the node, and label of the file system; this or source is required."`
	Source      string   `hcl:"source,optional" doc:"Folder of another machine: nas.example:/export/media by NFS, //nas.example/media by CIFS."`
	FSType      string   `hcl:"fstype,optional" doc:"File system that an empty disk gets: ext4 (default) or xfs."`
	Options     []string `hcl:"options,optional" doc:"Options of mount, such as noatime; nofail is always added."`
	Credentials string   `hcl:"credentials,optional" doc:"CIFS: lines such as username=media and password=…, from a secret; only root reads them."`
}

// NetworkType is the type of the file system of a source; "" if it has neither form.
func (m *Mount) NetworkType() string {
	host, folder, nfs := strings.Cut(m.Source, ":/")
	share, cifs := strings.CutPrefix(m.Source, "//")
	switch server, name, _ := strings.Cut(share, "/"); {
	case strings.ContainsAny(m.Source, " \t\n\\#,'\"\x00"):
		return ""
	case cifs && server != "" && name != "":
		return "cifs"
	case nfs && host != "" && !strings.Contains(host, "/") && !strings.Contains(folder, ".."):
		return "nfs"
	default:
		return ""
	}
}

// File is a file to write.
type File struct {
	Path    string   `hcl:"path,label"`
	Content string   `hcl:"content,optional" doc:"The whole content; this or source is required."`
	Source  string   `hcl:"source,optional" doc:"File of the site with the content; may be binary, up to 1 MiB."`
	Mode    string   `hcl:"mode,optional" doc:"Permissions in octal."`
	Owner   string   `hcl:"owner,optional" doc:"user or user:group."`
	Group   string   `hcl:"group,optional" doc:"Group that owns it (default: that of owner)."`
	Restart []string `hcl:"restart,optional" doc:"Services to restart when it changes."`

	Data []byte // content of Source, once the site is loaded
}

// Repository is a repository that apt installs from.
type Repository struct {
	Name       string   `hcl:"name,label"`
	URL        string   `hcl:"url" doc:"Address, such as https://download.example.org/debian."`
	Suites     []string `hcl:"suites" doc:"Suites, such as bookworm; one that ends in / is a folder without components."`
	Components []string `hcl:"components,optional" doc:"Components, such as main."`
	Key        string   `hcl:"key,optional" doc:"Armored public key, such as file(\"keys/example.asc\") (default: the keys of the image)."`
}

// Command is a command to run on a node.
type Command struct {
	Name    string `hcl:"name,label"`
	Run     string `hcl:"run" doc:"Shell script that root runs. A plan shows that it runs, not what it changes."`
	Unless  string `hcl:"unless,optional" doc:"Shell script that changes nothing; if it succeeds, the command is not run."`
	Creates string `hcl:"creates,optional" doc:"Path; if it exists, the command is not run. Without unless and creates it runs once, and after each edit."`
}

// Run says when a node in mode pull fetches its spec and applies it.
type Run struct {
	Trigger  string        `hcl:"trigger,optional" doc:"manual (when it boots only), schedule, webhook or git (when its parent notifies it)."`
	Interval time.Duration `hcl:"interval,optional" doc:"Time between runs, at least 1m (default: 1h); none if the trigger is manual."`
}

// Long lists the values that no text may repeat, longest first. Short ones are omitted: they
// would redact parts of ordinary words.
func (s *Secrets) Long() []string {
	if s == nil {
		return nil
	}
	values := map[string]bool{}
	for _, section := range s.Values {
		for _, v := range section {
			if len(v) >= 6 {
				values[v] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(values), func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
}

// Mask takes the values of secrets out of a text, and each of their lines, and of an API token the part that is secret.
func (s *Secrets) Mask(text string) string {
	for _, v := range s.Long() {
		text = strings.ReplaceAll(text, v, Sensitive)
		if name, half, ok := strings.Cut(v, "="); ok && strings.Contains(name, "!") && len(half) >= 6 {
			text = strings.ReplaceAll(text, half, Sensitive)
		}
		for line := range strings.Lines(v) {
			if line = strings.TrimSpace(line); len(line) >= 16 {
				text = strings.ReplaceAll(text, line, Sensitive)
			}
		}
	}
	return text
}
