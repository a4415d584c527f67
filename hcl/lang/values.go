package lang

import (
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	hclv2 "github.com/hashicorp/hcl/v2"

	"github.com/homestak/homestak-gitops/engine/model"
)

// valueRule restricts the values of an attribute beyond its type, and has its default. The
// attributes of guests have their rules in the kind.
type valueRule struct {
	oneOf    []string
	min, max int                 // of a number; both 0: any
	least    time.Duration       // of a duration
	most     time.Duration       // of a duration; 0: any
	check    func(string) string // end of a sentence that begins with the attribute; "" if the text is fine
	def      any
}

var (
	yesNo      = []string{"yes", "no"}
	privateNet = []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"} // RFC 1918, RFC 4193
	port       = valueRule{min: 1, max: 65535}
)

// The limits of PVE for VMIDs.
const (
	MinVMID = 100
	MaxVMID = 999_999_999
)

// valueRules is the table of all rules for single attributes, by the path of the
// attribute through the block types. A check block is the same in a node and a spec.
var valueRules = map[string]valueRule{
	"site.domain":          {check: domain},
	"site.timezone":        {check: siteZone},
	"site.dns":             {check: address},
	"site.gateway":         {check: address},
	"site.packages":        {check: word},
	"site.bridge":          {check: word, def: "vmbr0"},
	"site.vm_user":         {check: userName, def: "homestak"},
	"site.server_url":      {check: webURL},
	"site.max_deletes":     {min: 0, max: 1 << 30},
	"site.upgrade.window":  {check: window},
	"site.upgrade.version": {check: word},
	"site.upgrade.sha256":  {check: matches(sumText, "must be 64 hexadecimal digits in lower case")},
	"site.vmid_range.from": {min: MinVMID, max: MaxVMID},
	"site.vmid_range.to":   {min: MinVMID, max: MaxVMID},
	"site.naming.pattern":  {check: pattern},

	"host.api":                {check: apiURL},
	"host.server":             {check: apiURL},
	"host.node":               {check: name},
	"host.nodes":              {check: name},
	"host.fingerprint":        {check: fingerprint},
	"host.bridge":             {check: word},
	"host.pool":               {check: word},
	"host.storage.disks":      {check: word, def: "local-lvm"},
	"host.storage.images":     {check: word, def: "local"},
	"host.storage.iso":        {check: word, def: "local"},
	"host.storage.backups":    {check: word, def: "local"},
	"host.storage.snippets":   {check: word, def: "local"},
	"host.ssh.address":        {check: word},
	"host.ssh.port":           {min: port.min, max: port.max, def: 22},
	"host.ssh.user":           {check: userName, def: "root"},
	"host.hardware.cpu_cores": {min: 1, max: 1 << 20},
	"host.hardware.memory_gb": {min: 1, max: 1 << 30},

	"preset.cores":  {min: 1, max: 8192},
	"preset.memory": {min: 16, max: 1 << 32},
	"preset.disk":   {min: 1, max: 1 << 24},

	"template.url":      {check: webURL},
	"template.checksum": {check: checksum},
	"template.vmid":     {min: MinVMID, max: MaxVMID},
	"template.storage":  {check: word},

	"posture.auth.method":                 {oneOf: []string{"network", "site_token", "node_token"}, def: "network"},
	"posture.auth.networks":               {check: prefix, def: privateNet},
	"posture.ssh.port":                    {min: port.min, max: port.max, def: 22},
	"posture.ssh.permit_root_login":       {oneOf: []string{"yes", "no", "prohibit-password"}, def: "prohibit-password"},
	"posture.ssh.password_authentication": {oneOf: yesNo, def: "no"},
	"posture.packages":                    {check: word},

	"spec.identity.hostname":            {check: name},
	"spec.identity.domain":              {check: domain},
	"spec.network.ip":                   {check: prefix},
	"spec.network.gateway":              {check: address},
	"spec.network.dns":                  {check: address},
	"spec.access.user.groups":           {check: userName},
	"spec.access.user.shell":            {check: filePath, def: "/bin/bash"},
	"spec.platform.packages":            {check: word},
	"spec.platform.services.enable":     {check: unitName},
	"spec.platform.services.disable":    {check: unitName},
	"spec.config.timezone":              {check: timezone},
	"spec.config.drift":                 {oneOf: drifts, def: "revert"},
	"spec.config.file.mode":             {check: fileMode, def: "0644"},
	"spec.config.file.owner":            {check: fileOwner, def: "root:root"},
	"spec.config.repository.url":        {check: webURL},
	"spec.config.repository.suites":     {check: aptWord},
	"spec.config.repository.components": {check: aptWord},
	"spec.config.command.creates":       {check: filePath},
	"spec.config.file.group":            {check: userName},
	"spec.config.file.restart":          {check: unitName},
	"spec.config.mount.disk":            {check: name},
	"spec.config.mount.fstype":          {oneOf: []string{"ext4", "xfs"}},
	"spec.config.mount.options":         {check: mountOption},
	"spec.config.pve.bridge":            {check: bridgeName},
	"spec.config.pve.restart":           {check: window},
	"spec.config.swap":                  {min: 16, max: 1 << 20},
	"spec.access.via":                   {oneOf: words(model.ViaSSH, model.ViaAgent, model.ViaExec)},
	"spec.access.former_users":          {oneOf: []string{"lock", "remove"}},
	"spec.run.trigger":                  {oneOf: []string{"manual", "schedule", "webhook", "git"}, def: "manual"},
	"spec.run.interval":                 {least: time.Minute},
	"spec.check.http":                   {check: endpoint(model.HTTPEndpoint)},
	"spec.check.tcp":                    {check: endpoint(model.TCPEndpoint)},
	"spec.check.timeout":                {def: checkTimeout, most: checkMost},
	"spec.check.interval":               {def: checkInterval, least: checkLeast},
	"spec.check.every":                  {check: checkPeriod},

	"site.review_by":     {check: date},
	"manifest.review_by": {check: date},
	"node.review_by":     {check: date},
	"waiver.expires":     {check: date},
	"job.timeout":        {def: 10 * time.Minute},
	"job.on_failure":     {oneOf: []string{"continue", "stop"}, def: "continue"},
	"job.concurrency":    {min: 1, max: 1000, def: 8},

	"notify.type": {oneOf: words(
		model.NotifyWebhook, model.NotifyNtfy, model.NotifySlack, model.NotifyMatrix, model.NotifySMTP, model.NotifyAlertmanager,
		model.NotifyGitHub, model.NotifyGitLab, model.NotifyGitea, model.NotifyBitbucket,
	)},
	"notify.on":     {oneOf: []string{"failed", "drift", "refused", "expiring", model.Recovered}},
	"notify.after":  {min: 1, max: 1000, def: 1},
	"notify.remind": {least: 5 * time.Minute},
	"notify.flap":   {least: time.Second, def: 10 * time.Minute},

	"manifest.pattern":                     {oneOf: []string{"flat", "tiered", "mesh", "hub-spoke", "federated"}},
	"manifest.on_error":                    {oneOf: []string{"stop", "rollback", "continue"}, def: "stop"},
	"manifest.execution.default_mode":      {oneOf: modes, def: "push"},
	"manifest.execution.config":            {oneOf: modes},
	"manifest.execution.run":               {oneOf: modes},
	"manifest.settings.verify_ssh":         {def: true},
	"manifest.settings.cleanup_on_failure": {def: true},
	"manifest.settings.timeout":            {def: 10 * time.Minute},

	"site.backup.storage":          {check: word},
	"site.backup.mode":             {oneOf: []string{"snapshot", "suspend", "stop"}},
	"site.backup.max_age":          {least: time.Hour},
	"site.backup.verify":           {oneOf: []string{"restore"}},
	"site.backup.verify_every":     {least: time.Hour},
	"site.backup.window":           {check: window},
	"manifest.backup.storage":      {check: word},
	"manifest.backup.mode":         {oneOf: []string{"snapshot", "suspend", "stop"}},
	"manifest.backup.max_age":      {least: time.Hour},
	"manifest.backup.verify":       {oneOf: []string{"restore"}},
	"manifest.backup.verify_every": {least: time.Hour},
	"manifest.backup.window":       {check: window},
	"node.backup.storage":          {check: word},
	"node.backup.mode":             {oneOf: []string{"snapshot", "suspend", "stop"}},
	"node.backup.max_age":          {least: time.Hour},
	"node.backup.verify":           {oneOf: []string{"restore"}},
	"node.backup.verify_every":     {least: time.Hour},
	"node.backup.window":           {check: window},

	"node.execution.mode":      {oneOf: modes},
	"node.execution.config":    {oneOf: modes},
	"node.execution.run":       {oneOf: modes},
	"node.decommission.policy": {oneOf: []string{"allow_immediate_destroy", "requires_final_backup", "requires_migration_first"}},
	"node.decommission.verify": {oneOf: []string{"restore"}},
	"node.orphan":              {oneOf: words(model.OrphanRefuse, model.OrphanDestroy, model.OrphanAbandon), def: "refuse"},
	"node.drift":               {oneOf: drifts, def: "revert"},
	"pool.drift":               {oneOf: drifts},
	"ipset.drift":              {oneOf: drifts},
	"node.hypervisor.node":     {check: name},
	"node.hypervisor.storage":  {check: word, def: "local-lvm"},
	"node.hypervisor.bridge":   {check: word, def: "vmbr0"},
	"node.check.http":          {check: endpoint(model.HTTPEndpoint)},
	"node.check.tcp":           {check: endpoint(model.TCPEndpoint)},
	"node.check.timeout":       {def: checkTimeout, most: checkMost},
	"node.check.interval":      {def: checkInterval, least: checkLeast},
	"node.check.every":         {check: checkPeriod},

	"agent.identity":            {check: name},
	"agent.drift_every":         {least: time.Second, def: 5 * time.Minute},
	"agent.output_folders":      {check: filePath},
	"agent.concurrency":         {min: 1, max: 64, def: 8},
	"agent.images_max":          {min: 1, max: 65536, def: 20},
	"agent.repository.url":      {check: repositoryURL},
	"agent.repository.branch":   {check: word, def: "main"},
	"agent.repository.path":     {check: inside},
	"agent.repository.poll":     {least: time.Second, def: time.Minute},
	"agent.repository.max_size": {min: 1, max: 8192, def: 512},
	"agent.parent.url":          {check: webURL},
	"agent.parent.pins":         {check: fingerprint},
	"agent.parent.report_every": {least: time.Second, def: time.Minute},
	"agent.api.fingerprint":     {check: fingerprint},
	"agent.log.level":           {oneOf: []string{"debug", "info", "warn", "error"}, def: "info"},
	"agent.log.format":          {oneOf: []string{"text", "json"}, def: "text"},
}

var (
	modes  = []string{"push", "pull"}
	drifts = []string{"revert", "report"}
)

// words are the words of a set of values.
func words[T ~string](set ...T) []string {
	out := make([]string, len(set))
	for i, s := range set {
		out[i] = string(s)
	}
	return out
}

// CheckValue checks a field against the table.
func (d *Decoder) CheckValue(field reflect.Value, rule, name string, at hclv2.Range) {
	r, ok := valueRules[rule]
	if !ok {
		return
	}
	if field.Kind() == reflect.Pointer {
		field = field.Elem()
	}
	switch field.Kind() {
	case reflect.String:
		d.checkText(r, field.String(), name, at)
	case reflect.Slice:
		for i := range field.Len() {
			d.checkText(r, field.Index(i).String(), name, at)
		}
	case reflect.Int:
		if n := int(field.Int()); r.max != 0 && (n < r.min || n > r.max) {
			d.Invalid = true
			d.Errorf(at, fmt.Sprintf("%s = %d is not valid", name, n), "It must be between %d and %d.", r.min, r.max)
		}
	case reflect.Int64:
		if t := time.Duration(field.Int()); t < r.least {
			d.Invalid = true
			d.Errorf(at, fmt.Sprintf("%s = %q is not valid", name, model.ShortDuration(t)), "It must be at least %s.", r.least)
		} else if r.most != 0 && t > r.most {
			d.Invalid = true
			d.Errorf(at, fmt.Sprintf("%s = %q is not valid", name, model.ShortDuration(t)), "It must be at most %s.", model.ShortDuration(r.most))
		}
	default:
	}
}

func (d *Decoder) checkText(r valueRule, s, name string, at hclv2.Range) {
	meant := s
	if slices.Contains(r.oneOf, synonyms[s]) {
		meant = synonyms[s]
	}
	switch {
	case r.oneOf != nil && !slices.Contains(r.oneOf, s):
		d.Invalid = true
		d.Errorf(at, fmt.Sprintf("%s = %s is not valid", name, Quote(s)), "%s", d.Nearest(meant, r.oneOf))
	case r.check != nil && s != "":
		if problem := r.check(s); problem != "" {
			d.Invalid = true
			d.Errorf(at, fmt.Sprintf("%s = %s is not valid", name, Quote(s)), "It %s.", problem)
		}
	}
}

// checkLabel checks the name of an inner block.
func (d *Decoder) checkLabel(at hclv2.Range, rule, what, label string) bool {
	check := map[string]func(string) string{"spec.access.user": userName, "spec.config.file": filePath, "spec.config.mount": mountPath}[rule]
	if check == nil {
		return d.CheckName(at, what, label)
	}
	if problem := check(label); problem != "" || label == "" {
		d.Errorf(at, Quote(label)+" is not a valid name for a "+what, "It %s.", problem)
		return false
	}
	return true
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, " and ")
}

// Fill writes defaults into zero fields; it creates omitted blocks that have defaults.
func (all Schemas) Fill(v reflect.Value, rule string) {
	s := all.Of(v.Type())
	for _, f := range s.Attrs {
		field := v.Field(f.Index)
		def := valueRules[rule+"."+f.Name].def
		if def == nil || !field.IsZero() {
			continue
		}
		value := reflect.ValueOf(def)
		if list, ok := def.([]string); ok {
			value = reflect.ValueOf(slices.Clone(list))
		}
		if field.Kind() == reflect.Pointer {
			field.Set(reflect.New(field.Type().Elem()))
			field = field.Elem()
		}
		field.Set(value.Convert(field.Type()))
	}
	for _, f := range s.Blocks {
		field, path := v.Field(f.Index), rule+"."+f.Name
		switch {
		case f.Many:
			for i := range field.Len() {
				all.Fill(field.Index(i), path)
			}
		case field.IsNil() && !hasDefault(path):
		default:
			if field.IsNil() {
				field.Set(reflect.New(f.Elem))
			}
			all.Fill(field.Elem(), path)
		}
	}
}

// hasDefault reports whether an omitted block has defaults.
func hasDefault(path string) bool { return defaultBlocks()[path] }

// defaultBlocks are the blocks with defaults, by their path.
var defaultBlocks = sync.OnceValue(func() map[string]bool {
	blocks := map[string]bool{}
	for rule, r := range valueRules {
		if r.def != nil {
			blocks[rule[:strings.LastIndexByte(rule, '.')]] = true
		}
	}
	return blocks
})

// DefaultValue returns the default of an attribute by its path; nil if it has none.
func DefaultValue(rule string) any { return valueRules[rule].def }

var (
	wordText     = regexp.MustCompile(`^[^\s\x00-\x1f\x7f]+$`)
	siteZoneText = regexp.MustCompile(`^(host|UTC|[A-Za-z_]+(/[A-Za-z0-9_+-]+)+)$`)
	windowText   = regexp.MustCompile(`^([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9]$`)
	timezoneText = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`)
	userText     = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`) })
	ownerText    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}(:[a-z_][a-z0-9_-]{0,31})?$`) })
	// As systemd.unit(5) allows, without a folder.
	unitText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9:_.@\\][A-Za-z0-9:_.@\\-]*$`) })
	// As in the names of suites and components, and $(ARCH) of sources.list(5).
	aptText = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^([A-Za-z0-9._~+/]|\$\(ARCH\))([A-Za-z0-9._~+/-]|\$\(ARCH\))*$`)
	})
	modeText   = regexp.MustCompile(`^0?[0-7]{3,4}$`)
	domainText = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(?i:[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*(?i:[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)$`)
	})
	sumText      = regexp.MustCompile(`^[0-9a-f]{64}$`)
	checksumText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^sha256:[0-9a-fA-F]{64}$`) })
)

// date is the check of a date without a time.
func date(s string) string {
	if _, err := time.Parse(time.DateOnly, s); err != nil {
		return "must be a date such as 2027-03-31"
	}
	return ""
}

func matches(re *regexp.Regexp, problem string) func(string) string {
	return func(s string) string {
		if re.MatchString(s) {
			return ""
		}
		return problem
	}
}

func word(s string) string { return matches(wordText, "must be one word without spaces")(s) }
func window(s string) string {
	return matches(windowText, "must be two times of day, such as 03:00-05:00")(s)
}

func timezone(s string) string {
	return matches(timezoneText, "must be a name such as Europe/Berlin")(s)
}

// siteZone is stricter, because it is also for containers: PVE accepts only those names
// (pve-common, JSONSchema.pm, pve_verify_timezone; pve-container, PVE/LXC/Config.pm).
func siteZone(s string) string {
	return matches(siteZoneText, "must be UTC, host (the time zone of the PVE node) or a name such as Europe/Berlin: PVE accepts nothing else for containers")(s)
}

func userName(s string) string {
	return matches(userText(), "must be a user name that useradd accepts: at most 32 lower-case letters, digits, _ and -")(s)
}

func fileOwner(s string) string {
	return matches(ownerText(), "must be a user, or user:group")(s)
}

func unitName(s string) string {
	return matches(unitText(), "must be a systemd unit, such as nginx or nginx.service")(s)
}

func aptWord(s string) string {
	return matches(aptText(), "must be a suite or component as apt names it, such as bookworm or main")(s)
}

func fileMode(s string) string { return matches(modeText, "must be octal, such as 0644")(s) }
func checksum(s string) string {
	return matches(checksumText(), "must be sha256: and 64 hexadecimal digits")(s)
}

func name(s string) string {
	if ValidName(s) {
		return ""
	}
	return "must be a name of letters, digits and dashes that starts with a letter, at most 63 characters"
}

func domain(s string) string {
	if len(s) > 253 || !domainText().MatchString(s) {
		return "must be a DNS domain such as home.example"
	}
	return ""
}

func address(s string) string {
	if _, err := netip.ParseAddr(s); err != nil {
		return "must be an IP address such as 10.0.12.1"
	}
	return ""
}

func prefix(s string) string {
	if _, err := netip.ParsePrefix(s); err != nil {
		return "must be an IP address with its prefix length, such as 10.0.12.5/24"
	}
	return ""
}

func apiURL(s string) string {
	const want = "must be https, a name or address and a port, such as https://192.0.2.10:8006"
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return want
	}
	return ""
}

func webURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return "must be a URL that begins with https:// or http://"
	case u.User != nil:
		return "must not contain a user or password"
	default:
		return ""
	}
}

func fingerprint(s string) string {
	digits := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(s), "sha256:"), ":", "")
	if b, err := hex.DecodeString(digits); err != nil || len(b) != 32 {
		return "must be a SHA-256 fingerprint: 32 bytes in hexadecimal, as pvenode cert info shows it"
	}
	return ""
}

func filePath(s string) string {
	if !path.IsAbs(s) || path.Clean(s) != s || s == "/" || strings.ContainsAny(s, "\x00\n") {
		return "must be an absolute path without .., such as /etc/motd"
	}
	return ""
}

func pattern(s string) string {
	if _, err := regexp.Compile("^(?:" + s + ")$"); err != nil {
		return "must be a regular expression (RE2 syntax)"
	}
	return ""
}

// keyText reports whether an entry of ssh_keys is a key itself, not the name of one.
func keyText(s string) bool {
	kind, _, ok := strings.Cut(s, " ")
	return ok && (strings.HasPrefix(kind, "ssh-") || strings.HasPrefix(kind, "ecdsa-") || strings.HasPrefix(kind, "sk-"))
}

var sshURL = regexp.MustCompile(`^[\w.-]+@[^/:\s]+:\S+$`) // user@host:path, as git takes it

// repositoryURL checks that the URL of a repository can be fetched from. It must not have
// credentials: status and logs show it.
func repositoryURL(s string) string {
	if sshURL.MatchString(s) {
		return ""
	}
	if !strings.Contains(s, "://") {
		return filePathOf(s)
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "must be a URL"
	case u.Scheme == "file" && u.Host == "":
		return filePathOf(u.Path)
	case strings.HasPrefix(u.Scheme, "http") && u.User != nil:
		return "must not contain a user, password or token, because it is shown: name a file in auth { token_file = … }"
	case u.User != nil && hasPassword(u):
		return "must not contain a password, because it is shown: name a key in auth { key_file = … }"
	case u.Scheme == "http" && model.OnThisMachine(u.Hostname()):
		return ""
	case u.Hostname() == "" || !slices.Contains([]string{"https", "ssh"}, u.Scheme):
		return "must begin with https:// or ssh://, or be a folder on this machine"
	default:
		return ""
	}
}

func hasPassword(u *url.URL) bool {
	_, has := u.User.Password()
	return has
}

func filePathOf(s string) string {
	if s == "" || strings.ContainsAny(s, "\x00\n") {
		return "must name a folder"
	}
	return ""
}

// inside rejects paths outside the repository.
func inside(s string) string {
	if !fs.ValidPath(strings.TrimSuffix(s, "/")) {
		return "must be a folder of the repository without a leading / or .., such as sites/home"
	}
	return ""
}
