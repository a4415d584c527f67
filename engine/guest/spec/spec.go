// Package spec defines the resolved spec: what one node should be inside, without references. A parent serves it, a
// node applies it, and a machine is compared with it. Observations of a machine have the same type.
package spec

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/engine/model"
)

// version is the version of the document.
const version = 1

// Spec is the resolved spec of a node. The tags hcl, plan and cost are those of
// model.Kind; the paths of attributes are those of the files where they have them.
type Spec struct {
	Version int    `json:"version"`
	Node    string `json:"node"`
	Name    string `json:"spec"` // of the spec that it was made from

	Identity *Identity `json:"identity,omitempty" hcl:"identity,block"`
	Network  *Network  `json:"network,omitempty" hcl:"network,block"` // nil: nothing of it is touched
	Access   *access   `json:"access,omitempty" hcl:"access,block"`
	Posture  *posture  `json:"posture,omitempty" hcl:"posture,block"`
	Platform *platform `json:"platform,omitempty" hcl:"platform,block"`
	Config   *config   `json:"config,omitempty" hcl:"config,block"`
	Run      *Run      `json:"run,omitempty" hcl:"run,block"` // nil: the node does not apply it itself

	Sensitive []string `json:"sensitive,omitempty"` // paths of attributes made from secrets, sorted
}

// Identity is the identity of the node.
type Identity struct {
	Hostname string `json:"hostname,omitempty" hcl:"hostname,optional" doc:"Host name."`
	Domain   string `json:"domain,omitempty"`
	// Routable wants the name at an address of the network and not at one of the machine's own,
	// as Proxmox VE does.
	Routable bool   `json:"routable,omitempty"`
	Hosts    string `json:"-" plan:"hosts" doc:"The line of /etc/hosts that names the node."`
}

// Network is the address of the node, on the interface of its default route.
type Network struct {
	IP          string   `json:"ip,omitempty" hcl:"ip,optional" cost:"hot" doc:"IPv4 address with prefix length, or dhcp."` // "": not managed, nor is the gateway
	Gateway     string   `json:"gateway,omitempty" hcl:"gateway,optional" cost:"hot" doc:"Gateway of a static address."`
	DNS         []string `json:"dns,omitempty" hcl:"dns,optional" cost:"hot" doc:"Name servers, in their order."` // none: not managed
	Unconfirmed bool     `json:"-" plan:"unconfirmed" doc:"The settings are in force, and the machine restores the old ones unless they are confirmed."`
}

// DHCP is the address of a node that gets one by DHCP.
const DHCP = "dhcp"

// Static gives the address of the node if the spec says it.
func (n *Network) Static() (netip.Addr, bool) {
	if n == nil {
		return netip.Addr{}, false
	}
	at, err := netip.ParsePrefix(n.IP)
	return at.Addr(), err == nil
}

// access decides who may enter.
type access struct {
	Users       []User   `json:"users,omitempty" hcl:"user,block"`
	FormerUsers string   `json:"former_users,omitempty"` // lock or remove
	FirstUser   string   `json:"first_user,omitempty"`   // vm_user of the site: cloud-init creates it in a VM, with a file of sudo rules
	Groups      []string `json:"-" plan:"groups" doc:"Groups that were made for users and are needed no more."`
	Sudoers     []string `json:"-" plan:"sudoers" doc:"Rules that were added by hand to the file with the rules of the users."`
}

// Sudo says how a user may become root.
type Sudo string

// Values of Sudo.
const (
	SudoNone     Sudo = "none"
	SudoPassword Sudo = "password" // with the password of the user
	SudoNoPasswd Sudo = "nopasswd"
)

// User is a user of the node.
type User struct {
	Name   string   `json:"name" hcl:"name,label"`
	Sudo   Sudo     `json:"sudo" hcl:"sudo,optional" doc:"none, password or nopasswd."`
	Keys   []string `json:"ssh_keys"`
	Shown  []string `json:"-" plan:"ssh_keys" doc:"Keys that log in, by comment and fingerprint."`
	Groups []string `json:"groups,omitempty" hcl:"groups,optional" doc:"Further groups."`
	Shell  string   `json:"shell,omitempty" hcl:"shell,optional" doc:"Login shell."`
	Locked bool     `json:"-" plan:"locked" doc:"The account has expired, so logins are refused."`
}

// posture is the level of security, as far as it concerns the machine.
type posture struct {
	Name     string    `json:"name,omitempty"`
	SSH      *SSH      `json:"ssh,omitempty" hcl:"ssh,block"`
	Fail2ban *Fail2ban `json:"fail2ban,omitempty" hcl:"fail2ban,block"`
}

// SSH is the SSH server of the node.
type SSH struct {
	Port                   string `json:"port" hcl:"port" cost:"hot" doc:"Ports that the server listens on, separated by commas."`
	PermitRootLogin        string `json:"permit_root_login" hcl:"permit_root_login" cost:"hot" doc:"yes, no or prohibit-password."`
	PasswordAuthentication string `json:"password_authentication" hcl:"password_authentication" cost:"hot" doc:"yes or no."`
	Unconfirmed            bool   `json:"-" plan:"unconfirmed" doc:"The settings are in force, and the machine restores the old ones unless they are confirmed."`
}

// Fail2ban bans addresses that guess passwords.
type Fail2ban struct {
	Jail string `json:"-" plan:"jail" cost:"hot" doc:"State of the jail for sshd."`
}

// platform is the installed software and its services.
type platform struct {
	Packages []string          `json:"packages,omitempty" hcl:"packages,optional" doc:"Packages that are installed."`
	Services map[string]string `json:"services,omitempty" hcl:"services,optional" doc:"systemd units: enabled (and running) or disabled (and stopped)."`
}

// States of a service.
const (
	Enabled  = "enabled"  // it runs, and starts with the machine
	Disabled = "disabled" // neither
)

// config is settings of the system.
type config struct {
	Timezone string            `json:"timezone,omitempty" hcl:"timezone,optional" doc:"Time zone."`
	Drift    string            `json:"drift,omitempty"`
	Sysctl   map[string]string `json:"sysctl,omitempty" hcl:"sysctl,optional" doc:"Kernel parameters."`
	Files    []File            `json:"files,omitempty" hcl:"file,block"`

	Repositories []Repository `json:"repositories,omitempty" hcl:"repository,block"`
	Commands     []Command    `json:"commands,omitempty" hcl:"command,block"`
	Mounts       []Mount      `json:"mounts,omitempty" hcl:"mount,block"` // by path
	Swap         int          `json:"swap,omitempty"`                     // MiB; 0 leaves it as it is
	SwapFile     string       `json:"-" plan:"swap" doc:"Size of the swap file in MiB, and its state."`
	PVE          *PVE         `json:"pve,omitzero" hcl:"pve,block"`
}

// PVE is settings of a node of Proxmox VE.
type PVE struct {
	NoSubscription        bool   `json:"no_subscription,omitempty" hcl:"no_subscription,optional" doc:"Packages of Proxmox VE come from the repository without subscription, and none that needs one is asked."`
	RemoveSubscriptionNag bool   `json:"remove_subscription_nag,omitempty" hcl:"remove_subscription_nag,optional" doc:"The reminder about subscriptions is silenced."`
	Bridge                string `json:"bridge,omitempty" hcl:"bridge,optional" cost:"hot" doc:"Bridge with the card and the addresses of the default route."`
	Restart               string `json:"restart,omitempty"` // time of day in which the machine may restart, such as 03:00-05:00; "" for never
	Kernel                string `json:"-" plan:"kernel" doc:"The kernel that runs."`
}

// PVEKernel is the kernel that a host of Proxmox VE shall run.
const PVEKernel = "that of Proxmox VE"

// IsZero reports whether nothing is set, so that the document leaves it out.
func (p *PVE) IsZero() bool { return p == nil || *p == PVE{} }

// Repository is a repository that apt installs from.
type Repository struct {
	Name       string   `json:"name" hcl:"name,label"`
	URL        string   `json:"url" hcl:"url" doc:"Where it is."`
	Suites     []string `json:"suites" hcl:"suites" doc:"Suites, or folders that end in a slash."`
	Components []string `json:"components,omitempty" hcl:"components,optional" doc:"Components."`
	Key        string   `json:"key,omitempty" hcl:"key,optional" doc:"Public key that signs it, armored."`
}

// Command is a command to run.
type Command struct {
	Name    string `json:"name" hcl:"name,label"`
	Run     string `json:"run" hcl:"run" doc:"Shell script that root runs."`
	Unless  string `json:"unless,omitempty"`
	Creates string `json:"creates,omitempty"`
}

// File is a file to write.
type File struct {
	Path    string   `json:"path" hcl:"path,label"`
	Content string   `json:"content,omitempty" hcl:"content" doc:"The whole content; the checksum of one that is long, or is not text."`
	Base64  string   `json:"content_base64,omitempty"` // the content, where Content is its checksum
	Mode    string   `json:"mode" hcl:"mode" doc:"Permissions in octal, four digits."`
	Owner   string   `json:"owner" hcl:"owner" doc:"User that owns it."`
	Group   string   `json:"group" hcl:"group" doc:"Group that owns it."`
	Restart []string `json:"restart,omitempty" hcl:"restart,optional" cost:"hot" doc:"Units that are restarted when it changes."`
}

// Run says when a node asks its parent: when it boots, and after each interval. With the triggers webhook and git its parent
// notifies it, and the interval is for what it missed. It fetches its spec and applies it, and takes its commands.
type Run struct {
	Trigger  string `json:"trigger"` // manual, schedule, webhook or git
	Interval int    `json:"interval_seconds,omitempty"`
	Pushed   bool   `json:"pushed,omitempty"` // the spec is applied by push: the node only takes its commands
	Timer    string `json:"-" plan:"timer" doc:"When the node fetches and applies its spec, or that it asks for commands alone."`
}

// Notified reports whether the parent notifies the node when there is something to do.
func (r *Run) Notified() bool { return r.Trigger == "webhook" || r.Trigger == "git" }

// Every is the interval; 0 for when it boots only.
func (r *Run) Every() time.Duration {
	if r.Trigger == "manual" {
		return 0
	}
	if r.Interval <= 0 {
		return time.Hour
	}
	return time.Duration(r.Interval) * time.Second
}

// mostText is the maximum length of a content that is compared and shown as text.
const mostText = 16 << 10

// SetContent sets the content to any bytes. JSON has no others than those of UTF-8 text.
func (f *File) SetContent(content []byte) {
	if len(content) <= mostText && utf8.Valid(content) && !bytes.ContainsRune(content, 0) {
		f.Content, f.Base64 = string(content), ""
		return
	}
	f.Content, f.Base64 = fmt.Sprintf("sha256:%x", sha256.Sum256(content)), base64.StdEncoding.EncodeToString(content)
}

// Bytes is the content.
func (f *File) Bytes() string {
	if f.Base64 == "" {
		return f.Content
	}
	content, err := base64.StdEncoding.DecodeString(f.Base64)
	if err != nil {
		return f.Content // Read has refused it
	}
	return string(content)
}

// Read parses a document, and completes what it lacks.
func Read(document []byte) (*Spec, error) {
	var s Spec
	if err := json.Unmarshal(document, &s); err != nil {
		return nil, fmt.Errorf("reading the spec: %w", err)
	}
	if s.Version != version {
		return nil, fmt.Errorf("the spec has version %d, this program reads %d", s.Version, version)
	}
	for _, f := range s.Config.files() {
		if _, err := base64.StdEncoding.DecodeString(f.Base64); err != nil {
			return nil, fmt.Errorf("reading the spec: content_base64 of file %s: %w", f.Path, err)
		}
	}
	s.complete()
	return &s, nil
}

func (c *config) files() []File {
	if c == nil {
		return nil
	}
	return c.Files
}

// complete makes every block be there, in a form that can be compared.
func (s *Spec) complete() {
	s.Version = version
	if s.Identity == nil {
		s.Identity = &Identity{}
	}
	if s.Identity.Hostname != "" {
		s.Identity.Hosts = s.Identity.HostsLine()
	}
	if s.Access == nil {
		s.Access = &access{}
	}
	if s.Posture == nil {
		s.Posture = &posture{}
	}
	if s.Platform == nil {
		s.Platform = &platform{}
	}
	if s.Config == nil {
		s.Config = &config{}
	}
	if s.Config.PVE == nil {
		s.Config.PVE = &PVE{}
	}
	if s.Config.PVE.Restart != "" {
		s.Config.PVE.Kernel = PVEKernel
	}
	if s.Config.Swap > 0 {
		s.Config.SwapFile = strconv.Itoa(s.Config.Swap)
	}
	for i := range s.Config.Mounts {
		m := &s.Config.Mounts[i]
		m.Size, m.Options = WholeDisk, distinct(m.Options)
		slices.Sort(m.Options)
	}
	sort.Slice(s.Config.Mounts, func(i, j int) bool { return s.Config.Mounts[i].Path < s.Config.Mounts[j].Path })
	if s.Posture.Fail2ban != nil {
		s.Posture.Fail2ban.Jail = "on"
	}
	if s.Run != nil && s.Run.Pushed {
		s.Run.Timer = "for commands alone"
	} else if s.Run != nil {
		s.Run.Timer = "at boot"
		if every := s.Run.Every(); every > 0 {
			text := every.String() // 1h0m0s
			if strings.HasSuffix(text, "m0s") {
				text = strings.TrimSuffix(text, "0s")
			}
			if strings.HasSuffix(text, "h0m") {
				text = strings.TrimSuffix(text, "0m")
			}
			if s.Run.Notified() {
				s.Run.Timer += ", when its parent has news"
			}
			s.Run.Timer += ", and every " + text
		}
	}
	slices.Sort(s.Platform.Packages)
	for i := range s.Access.Users {
		u := &s.Access.Users[i]
		u.Groups = distinct(u.Groups)
		slices.Sort(u.Groups)
		u.Shown = ShowKeys(u.Keys)
	}
	for i := range s.Config.Files {
		f := &s.Config.Files[i]
		f.Mode = FourDigits(f.Mode)
		f.Restart = distinct(f.Restart)
	}
}

// Empty is a spec that asks nothing: compared with it, a machine has what is to be withdrawn.
func Empty(node string) *Spec {
	s := &Spec{Node: node}
	s.complete()
	return s
}

// Withdrawn is what a machine shall be when a spec is withdrawn from it: it asks nothing, and says what happens to the users.
func (s *Spec) Withdrawn() *Spec {
	none := Empty(s.Node)
	none.Name, none.Access.FormerUsers, none.Access.FirstUser = s.Name, s.Access.FormerUsers, s.Access.FirstUser
	return none
}

// User finds a user; nil if the spec has none of that name.
func (s *Spec) User(name string) *User {
	for i := range s.Access.Users {
		if s.Access.Users[i].Name == name {
			return &s.Access.Users[i]
		}
	}
	return nil
}

// File finds a file; nil if the spec has none at that path.
func (s *Spec) File(path string) *File {
	for i := range s.Config.Files {
		if s.Config.Files[i].Path == path {
			return &s.Config.Files[i]
		}
	}
	return nil
}

// Mount finds a mount; nil if the spec has none at that path.
func (s *Spec) Mount(path string) *Mount {
	for i := range s.Config.Mounts {
		if s.Config.Mounts[i].Path == path {
			return &s.Config.Mounts[i]
		}
	}
	return nil
}

// Repository finds a repository; nil if the spec has none of that name.
func (s *Spec) Repository(name string) *Repository {
	for i := range s.Config.Repositories {
		if s.Config.Repositories[i].Name == name {
			return &s.Config.Repositories[i]
		}
	}
	return nil
}

// Command finds a command; nil if the spec has none of that name.
func (s *Spec) Command(name string) *Command {
	for i := range s.Config.Commands {
		if s.Config.Commands[i].Name == name {
			return &s.Config.Commands[i]
		}
	}
	return nil
}

// IsSensitive reports whether an attribute or a part of it was made from a secret.
func (s *Spec) IsSensitive(path string) bool {
	return slices.ContainsFunc(s.Sensitive, func(p string) bool {
		return p == path || strings.HasPrefix(path, p+".") || strings.HasPrefix(p, path+".")
	})
}

// Masked is the spec without the values that are made from secrets, for people and their programs.
func (s *Spec) Masked() *Spec {
	out, config := *s, *s.Config
	mask := func(value *string, path string) {
		if *value != "" && s.IsSensitive(path) {
			*value = model.Sensitive
		}
	}
	config.Sysctl = maps.Clone(config.Sysctl)
	for name, value := range config.Sysctl {
		mask(&value, "config.sysctl."+name)
		config.Sysctl[name] = value
	}
	config.Files, config.Commands, config.Repositories = slices.Clone(config.Files), slices.Clone(config.Commands), slices.Clone(config.Repositories)
	config.Mounts = slices.Clone(config.Mounts)
	for i := range config.Mounts {
		mask(&config.Mounts[i].Credentials, "config.mount."+config.Mounts[i].Path+".credentials")
	}
	for i := range config.Files {
		mask(&config.Files[i].Content, "config.file."+config.Files[i].Path+".content")
		if config.Files[i].Content == model.Sensitive {
			config.Files[i].Base64 = ""
		}
	}
	for i := range config.Commands {
		c := &config.Commands[i]
		for name, value := range map[string]*string{"run": &c.Run, "unless": &c.Unless, "creates": &c.Creates} {
			mask(value, "config.command."+c.Name+"."+name)
		}
	}
	for i := range config.Repositories {
		mask(&config.Repositories[i].URL, "config.repository."+config.Repositories[i].Name+".url")
		mask(&config.Repositories[i].Key, "config.repository."+config.Repositories[i].Name+".key")
	}
	out.Config = &config
	return &out
}

// FQDN is the full name of the node.
func (i *Identity) FQDN() string {
	if i.Domain == "" {
		return i.Hostname
	}
	return i.Hostname + "." + i.Domain
}

// OwnAddress is the placeholder in HostsLine for the address that only the machine itself knows.
const OwnAddress = "(its address)"

// HostsLine is the line of /etc/hosts for a node, as Debian's installer writes it
// (Debian Reference, 5.1.1): the full name first.
func (i *Identity) HostsLine() string {
	names := i.Hostname
	if i.Domain != "" {
		names = i.FQDN() + " " + i.Hostname
	}
	if i.Routable {
		return OwnAddress + " " + names
	}
	return "127.0.1.1 " + names
}

// FourDigits writes a mode in octal as four digits.
func FourDigits(mode string) string {
	n, err := strconv.ParseUint(mode, 8, 16)
	if err != nil {
		return mode
	}
	return fmt.Sprintf("%04o", n)
}

// ShowKeys names keys in a form that people recognise: "ops@laptop SHA256:2vI5…", as
// ssh-keygen -l does.
func ShowKeys(lines []string) []string {
	out := []string{}
	for _, l := range lines {
		out = append(out, ShowKey(l))
	}
	slices.Sort(out)
	return out
}

// ShowKey names one key.
func ShowKey(line string) string {
	id := model.SSHKeyID(line)
	raw, err := base64.StdEncoding.DecodeString(id)
	if id == "" || err != nil {
		return line
	}
	sum := sha256.Sum256(raw)
	_, comment, _ := strings.Cut(line, id)
	return strings.TrimSpace(strings.TrimSpace(comment) + " SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])[:12])
}

func distinct(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
