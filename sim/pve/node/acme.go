package node

// This part of the package is accounts with authorities that issue certificates automatically, and the orders
// of nodes.

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/cluster"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// ACMEArea is ACME accounts and certificates.
func ACMEArea() core.Area {
	return core.Area{
		Files: acmeFiles(),
		Calls: acmeCalls(),
		Begin: beginACME,
	}
}

// ACME (PVE/API2/ACMEAccount.pm, ACMEPlugin.pm, ACME.pm): the authority is one that
// grants whatever is asked.

// acmeAccount is what the authority knows of whom it registered.
type acmeAccount struct {
	directory, tos, location, created string
	contact                           []string
}

var acmeDirectories = [][2]string{
	{"Let's Encrypt V2", "https://acme-v02.api.letsencrypt.org/directory"},
	{"Let's Encrypt V2 Staging", "https://acme-staging-v02.api.letsencrypt.org/directory"},
}

const acmeTerms = "https://letsencrypt.org/documents/LE-SA-v1.5-February-24-2025.pdf"

// acmeAPIs are some of the services for DNS challenges (dns-challenge-schema.json).
const acmeAPIs = "acmedns|acmeproxy|active24|ad|ali|arvan|autodns|aws|azure|bunny|cf|clouddns|cloudns|cn|conoha|constellix|cpanel|cx|cyon|da|ddnss|desec|dgon|" +
	"dnsimple|do|doapi|domeneshop|dp|dpi|dreamhost|duckdns|durabledns|dyn|dynu|dynv6|easydns|euserv|exoscale|freedns|gandi_livedns|gcloud|gd|gdnsdk|he|hetzner|" +
	"hexonet|hostingde|huaweicloud|infoblox|infomaniak|internetbs|inwx|ionos|ispconfig|jd|joker|kas|kinghost|knot|leaseweb|lexicon|linode|linode_v4|loopia|lua|" + //nolint:misspell // Its name.
	"maradns|me|misaka|myapi|mydevil|mydnsjp|namecheap|namecom|namesilo|nederhost|neodigit|netcup|netlify|nic|njalla|nm|nsd|nsone|nsupdate|nw|oci|one|online|" +
	"openprovider|openstack|opnsense|ovh|pdns|pleskxml|pointhq|porkbun|rackspace|rcode0|regru|scaleway|schlundtech|selectel|servercow|simply|tele3|transip|udr|" +
	"ultra|unoeuro|variomedia|vscale|vultr|websupport|world4you|yandex|yc|zilore|zone|zonomi"

func acmeFiles() []core.SectionFile {
	return []core.SectionFile{{
		Name: "priv/acme/plugins", Path: "/cluster/acme/plugins", Key: "id", ID: "pve-configid", Plain: true,
		Kinds: map[string]string{"dns": "api? data? validation-delay? nodes? disable?", "standalone": "nodes? disable?"},
		Props: `api: string ` + acmeAPIs + `
			data: string
			validation-delay: integer 0..172800
			nodes: string pve-node-list
			disable: boolean`,
		Read: core.AllOf("/", "Sys.Modify"), Write: core.AllOf("/", "Sys.Modify"), Lock: "priv_acme_plugins_cfg",
		Twice: "ACME plugin ID '%s' already exists", Missing: "ACME plugin '%s' not defined", Gone: "ACME plugin ID '%s' does not exist", MissingIsGone: true,
		Show: func(_ *core.World, _ *core.Call, id string, entry map[string]any) {
			entry["plugin"] = id
			if data, ok := entry["data"].(string); ok {
				plain, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(strings.NewReplacer("+", "-", "/", "_").Replace(data), "="))
				if err == nil {
					entry["data"] = string(plain)
				}
			}
		},
	}}
}

func acmeName(c *core.Call) string {
	if name := c.In["name"]; name != "" {
		return name
	}
	return "default"
}

// accounts are those of all authorities, by name.
type accounts map[string]*acmeAccount

func accountsOf(w *core.World) accounts { return core.MapOf[accounts](&w.Parts) }

// beginACME is what there is from the start.
func beginACME(w *core.World) {
	w.Sections["priv/acme/plugins"] = map[string]perl.Config{"standalone": {"type": "standalone"}}
}

// accountOfCall finds the account of a call.
func accountOfCall(c *core.Call) (*acmeAccount, error) {
	name := acmeName(c)
	if account := accountsOf(c.W)[name]; account != nil {
		return account, nil
	}
	return nil, perl.BadParam("name", "ACME account config file '"+name+"' does not exist.")
}

// apiAcmeAccounts is GET /cluster/acme/account.
func apiAcmeAccounts(w *core.World, _ *core.Call) (any, error) {
	return core.Subdirs("name", slices.Sorted(maps.Keys(accountsOf(w)))...), nil
}

// apiAcmeAccount is GET /cluster/acme/account/{name}.
func apiAcmeAccount(_ *core.World, _ *core.Call, account *acmeAccount) (any, error) {
	entry := map[string]any{
		"account":   map[string]any{"contact": account.contact, "createdAt": account.created, "status": "valid"},
		"directory": account.directory, "location": account.location,
	}
	if account.tos != "" {
		entry["tos"] = account.tos
	}
	return entry, nil
}

func contacts(c *core.Call) []string {
	list := []string{}
	for _, address := range c.List("contact") {
		list = append(list, "mailto:"+address)
	}
	return list
}

// apiAcmeRegister is POST /cluster/acme/account.
func apiAcmeRegister(w *core.World, c *core.Call) (any, error) {
	name := acmeName(c)
	if accountsOf(w)[name] != nil {
		return nil, perl.BadParam("name", "ACME account config file '"+name+"' already exists.")
	}
	account := &acmeAccount{directory: c.In["directory"], tos: c.In["tos_url"], contact: contacts(c)}
	account.directory = cmp.Or(account.directory, acmeDirectories[0][1])
	return w.Fork(c, w.Cfg.Node, core.Job{Kind: "acmeregister", End: func(t *core.Task) error {
		if accountsOf(w)[name] != nil {
			return perl.Fail("ACME account config file '%s' already exists.", name)
		}
		account.created = w.Now.UTC().Format("2006-01-02T15:04:05Z")
		account.location = strings.TrimSuffix(account.directory, "directory") + "acme/acct/" + fmt.Sprint(w.Rng.Uint32())
		accountsOf(w)[name] = account
		t.Logf("Generating ACME account key..\nRegistering ACME account..\nRegistration successful, account URL: '%s'", account.location)
		return nil
	}}), nil
}

// apiAcmeUpdate is PUT of an account, apiAcmeDeactivate DELETE.
func apiAcmeUpdate(w *core.World, c *core.Call, account *acmeAccount) (any, error) {
	kind, contact := "acmerefresh", contacts(c)
	if len(contact) > 0 {
		kind = "acmeupdate"
	}
	return w.Fork(c, w.Cfg.Node, core.Job{Kind: kind, End: func(*core.Task) error {
		if len(contact) > 0 {
			account.contact = contact
		}
		return nil
	}}), nil
}

func apiAcmeDeactivate(w *core.World, c *core.Call, _ *acmeAccount) (any, error) {
	name := acmeName(c)
	return w.Fork(c, w.Cfg.Node, core.Job{Kind: "acmedeactivate", End: func(t *core.Task) error {
		at := "/etc/pve/priv/acme/"
		t.Logf("Renaming account file from '%s%s' to '%s_deactivated_%s_0'", at, name, at, name)
		delete(accountsOf(w), name)
		return nil
	}}), nil
}

// The rest are questions to the authority.

func apiAcmeTerms(*core.World, *core.Call) (any, error) { return acmeTerms, nil }

func apiAcmeMeta(*core.World, *core.Call) (any, error) {
	return map[string]any{"termsOfService": acmeTerms, "website": "https://letsencrypt.org", "caaIdentities": []string{"letsencrypt.org"}}, nil
}

func apiAcmeDirectories(*core.World, *core.Call) (any, error) {
	list := []map[string]any{}
	for _, d := range acmeDirectories {
		list = append(list, map[string]any{"name": d[0], "url": d[1]})
	}
	return list, nil
}

func apiAcmeSchema(*core.World, *core.Call) (any, error) {
	list := []map[string]any{}
	for api := range strings.SplitSeq(acmeAPIs, "|") {
		list = append(list, map[string]any{"id": api, "name": api, "type": "dns", "schema": map[string]any{}})
	}
	return list, nil
}

func acmeCalls() []core.ExtraCall {
	word, list, object := &pveapi.Value{Type: "string"}, &pveapi.Value{Type: "array"}, &pveapi.Value{Type: "object"}
	const name, contact = "name: string pve-configid\n", "contact: string email-list"
	const directory = "directory: string /^https?://.*/"
	const at = "/nodes/{node}/certificates/acme"
	modify := core.AllOf("/nodes/{node}", "Sys.Modify")
	return []core.ExtraCall{
		{Name: "GET /cluster/acme/account", Returns: list, Handle: apiAcmeAccounts},
		{
			Name: "POST /cluster/acme/account", Root: true, Returns: word, Handle: apiAcmeRegister,
			Params: name + contact + " needed\ntos_url: string\neab-kid: string\neab-hmac-key: string\n" + directory,
		},
		{Name: "GET /cluster/acme/account/{name}", Root: true, Params: name, Returns: object, Handle: core.On(accountOfCall, apiAcmeAccount)},
		{Name: "PUT /cluster/acme/account/{name}", Root: true, Params: name + contact, Returns: word, Handle: core.On(accountOfCall, apiAcmeUpdate)},
		{Name: "DELETE /cluster/acme/account/{name}", Root: true, Params: name, Returns: word, Handle: core.On(accountOfCall, apiAcmeDeactivate)},
		{Name: "GET /cluster/acme/tos", Params: directory, Returns: word, Handle: apiAcmeTerms},
		{Name: "GET /cluster/acme/meta", Params: directory, Returns: object, Since: "9.0", Handle: apiAcmeMeta},
		{Name: "GET /cluster/acme/directories", Returns: list, Handle: apiAcmeDirectories},
		{Name: "GET /cluster/acme/challenge-schema", Returns: list, Handle: apiAcmeSchema},
		{Name: "GET " + at, Returns: list, Handle: core.DirectoryIndex{Key: "name", Names: "certificate"}.Handler},
		{Name: "POST " + at + "/certificate", Perm: modify, Params: "force: boolean", Returns: word, Handle: apiAcmeCertificate},
		{Name: "PUT " + at + "/certificate", Perm: modify, Params: "force: boolean", Returns: word, Handle: apiAcmeCertificate},
		{Name: "DELETE " + at + "/certificate", Perm: modify, Returns: word, Handle: apiAcmeCertificate},
	}
}

// acmeDomains are the domains of the configuration of a node (get_acme_conf in
// PVE/NodeConfig.pm).
func acmeDomains(conf perl.Config) []string {
	domains := strings.FieldsFunc(perl.OptionOf(conf["acme"], "domains"), func(r rune) bool { return r == ';' })
	for _, key := range perl.IndexedKeys(conf, "acmedomain") {
		domain, _, _ := strings.Cut(conf[key], ",")
		domains = append(domains, strings.TrimPrefix(domain, "domain="))
	}
	return domains
}

// apiAcmeCertificate is POST, PUT and DELETE /nodes/{node}/certificates/acme/certificate.
func apiAcmeCertificate(w *core.World, c *core.Call) (any, error) {
	s, conf := custom(c), c.Node().Conf
	order := c.Req.Method == http.MethodPost
	switch soon := s.Cert != nil && s.Cert.NotAfter.Before(w.Now.Add(30*24*time.Hour)); {
	case order && s.Cert != nil && !c.Flag("force"):
		return nil, perl.BadParam("force", "Custom certificate exists but 'force' is not set.")
	case c.Req.Method == http.MethodPut && s.Cert == nil:
		return nil, perl.Fail("No current (custom) certificate found, please order a new certificate!")
	case c.Req.Method == http.MethodPut && !soon && !c.Flag("force"):
		return nil, perl.BadParam("force", "Certificate does not expire within the next 30 days, and 'force' is not set.")
	}
	domains := acmeDomains(conf)
	if len(domains) == 0 {
		return nil, cluster.BadRequest("ACME domain list in node configuration is missing!")
	}
	account := cmp.Or(perl.OptionOf(conf["acme"], "account"), "default")
	kind := map[string]string{"POST": "acmenewcert", "PUT": "acmerenew", "DELETE": "acmerevoke"}[c.Req.Method]
	return w.Fork(c, c.In["node"], core.Job{Kind: kind, End: func(t *core.Task) error {
		if accountsOf(w)[account] == nil {
			return perl.Fail("ACME account config file '%s' does not exist.", account)
		}
		t.Logf("Loading ACME account details")
		if kind == "acmerevoke" {
			t.Logf("Revoking old certificate\nDeleting certificate files\nRestarting pveproxy to revert to self-signed certificates")
			s.Cert = nil
			return nil
		}
		t.Logf("Placing ACME order\nAll domains validated!\n\nCreating CSR\nChecking order status\nDownloading certificate\nSetting pveproxy certificate and key\nRestarting pveproxy")
		s.Cert = NewCertificate(domains[0], w.Now).Parsed
		return nil
	}}), nil
}
