package importer

// The YAML files of the predecessor, key by key. A key that has two names was renamed; both are read.

// siteYAML is site.yaml.
type siteYAML struct {
	Defaults struct {
		Gateway        string   `yaml:"gateway"`
		DNS            []string `yaml:"dns_servers"`
		Domain         string   `yaml:"domain"`
		Timezone       string   `yaml:"timezone"`
		HostUser       string   `yaml:"host_user"`
		SSHUser        string   `yaml:"ssh_user"`
		VMUser         string   `yaml:"vm_user"`
		AutomationUser string   `yaml:"automation_user"`
		Packages       []string `yaml:"packages"`
		ServerURL      string   `yaml:"server_url"`
		SpecServer     string   `yaml:"spec_server"`
		Bridge         string   `yaml:"bridge"`
		ImageRelease   string   `yaml:"image_release"`
		PackerRelease  string   `yaml:"packer_release"`
		RemoveNag      *bool    `yaml:"pve_remove_subscription_nag"`
		Datastore      string   `yaml:"datastore"`
	} `yaml:"defaults"`
}

// hostYAML is hosts/NAME.yaml: a physical machine.
type hostYAML struct {
	Host    string `yaml:"host"`
	Domain  string `yaml:"domain"`
	IP      string `yaml:"ip"`
	Network struct {
		Interfaces map[string]struct {
			Type    string   `yaml:"type"`
			Ports   []string `yaml:"ports"`
			Address string   `yaml:"address"`
			Gateway string   `yaml:"gateway"`
		} `yaml:"interfaces"`
	} `yaml:"network"`
	Storage struct {
		ZFSPools []struct {
			Name    string   `yaml:"name"`
			Devices []string `yaml:"devices"`
		} `yaml:"zfs_pools"`
	} `yaml:"storage"`
	Hardware struct {
		CPUCores int `yaml:"cpu_cores"`
		MemoryGB int `yaml:"memory_gb"`
	} `yaml:"hardware"`
	Access struct {
		HostUser       string   `yaml:"host_user"`
		SSHUser        string   `yaml:"ssh_user"`
		SSHPort        int      `yaml:"ssh_port"`
		AuthorizedKeys []string `yaml:"authorized_keys"`
	} `yaml:"access"`
	SSH struct {
		PermitRootLogin        string `yaml:"permit_root_login"`
		PasswordAuthentication string `yaml:"password_authentication"`
	} `yaml:"ssh"`
}

// nodeYAML is nodes/NAME.yaml: Proxmox VE on a host, or on a node.
type nodeYAML struct {
	Node        string `yaml:"node"`
	Host        string `yaml:"host"`
	ParentNode  string `yaml:"parent_node"`
	APIEndpoint string `yaml:"api_endpoint"`
	APIToken    string `yaml:"api_token"`
	Datastore   string `yaml:"datastore"`
	IP          string `yaml:"ip"`
	HostUser    string `yaml:"host_user"`
	SSHUser     string `yaml:"ssh_user"`
}

// presetYAML is presets/NAME.yaml.
type presetYAML struct {
	Cores  int `yaml:"cores"`
	Memory int `yaml:"memory"`
	Disk   int `yaml:"disk"`
}

// postureYAML is postures/NAME.yaml.
type postureYAML struct {
	Auth struct {
		Method string `yaml:"method"`
	} `yaml:"auth"`
	SSH struct {
		Port                   int    `yaml:"port"`
		PermitRootLogin        string `yaml:"permit_root_login"`
		PasswordAuthentication string `yaml:"password_authentication"`
	} `yaml:"ssh"`
	Sudo struct {
		NoPasswd bool `yaml:"nopasswd"`
	} `yaml:"sudo"`
	Fail2ban struct {
		Enabled bool `yaml:"enabled"`
	} `yaml:"fail2ban"`
	Packages []string `yaml:"packages"`
}

// specYAML is specs/NAME.yaml.
type specYAML struct {
	SchemaVersion int `yaml:"schema_version"`
	Identity      struct {
		Hostname string `yaml:"hostname"`
		Domain   string `yaml:"domain"`
	} `yaml:"identity"`
	Network struct {
		IP      string   `yaml:"ip"`
		Gateway string   `yaml:"gateway"`
		DNS     []string `yaml:"dns"`
	} `yaml:"network"`
	Access struct {
		Posture string `yaml:"posture"`
		Users   []struct {
			Name    string    `yaml:"name"`
			Sudo    bool      `yaml:"sudo"`
			SSHKeys *[]string `yaml:"ssh_keys"` // nil: all
		} `yaml:"users"`
	} `yaml:"access"`
	Platform struct {
		Packages []string `yaml:"packages"`
		Services struct {
			Enable  []string `yaml:"enable"`
			Disable []string `yaml:"disable"`
		} `yaml:"services"`
	} `yaml:"platform"`
	Config struct {
		Timezone string `yaml:"timezone"`
		PVE      struct {
			RemoveNag *bool          `yaml:"remove_subscription_nag"`
			More      map[string]any `yaml:",inline"`
		} `yaml:"pve"`
		More map[string]any `yaml:",inline"` // any key was allowed
	} `yaml:"config"`
	Run         runYAML `yaml:"run"`
	Convergence runYAML `yaml:"convergence"`
	Apply       runYAML `yaml:"apply"`
}

// runYAML is the section run of a spec.
type runYAML struct {
	Trigger      string `yaml:"trigger"`
	Interval     string `yaml:"interval"`
	Port         int    `yaml:"port"`
	Path         string `yaml:"path"`
	Repo         string `yaml:"repo"`
	Branch       string `yaml:"branch"`
	PollInterval string `yaml:"poll_interval"`
}

// manifestYAML is manifests/NAME.yaml: of version 1 with levels, of version 2 with nodes.
type manifestYAML struct {
	SchemaVersion int    `yaml:"schema_version"`
	Name          string `yaml:"name"`
	Description   string `yaml:"description"`
	Pattern       string `yaml:"pattern"`
	Execution     struct {
		DefaultMode string `yaml:"default_mode"`
	} `yaml:"execution"`
	Nodes    []machineYAML `yaml:"nodes"`
	Levels   []levelYAML   `yaml:"levels"`
	Settings struct {
		VerifySSH        *bool  `yaml:"verify_ssh"`
		CleanupOnFailure *bool  `yaml:"cleanup_on_failure"`
		TimeoutBuffer    *int   `yaml:"timeout_buffer"`
		OnError          string `yaml:"on_error"`
	} `yaml:"settings"`
}

// machineYAML is a node of a manifest.
type machineYAML struct {
	Name      string `yaml:"name"`
	Type      string `yaml:"type"`
	Spec      string `yaml:"spec"`
	Preset    string `yaml:"preset"`
	Image     string `yaml:"image"`
	VMID      int    `yaml:"vmid"`
	Disk      int    `yaml:"disk"`
	Parent    string `yaml:"parent"`
	Execution struct {
		Mode string `yaml:"mode"`
	} `yaml:"execution"`
	Template     string         `yaml:"template"`
	Unprivileged *bool          `yaml:"unprivileged"`
	Hardware     map[string]any `yaml:"hardware"`
	Access       map[string]any `yaml:"access"`
}

// levelYAML is a level of a manifest of version 1: a machine on the one of the level before.
type levelYAML struct {
	Name             string   `yaml:"name"`
	Env              string   `yaml:"env"`
	VMPreset         string   `yaml:"vm_preset"`
	Image            string   `yaml:"image"`
	VMID             int      `yaml:"vmid"`
	PostScenario     string   `yaml:"post_scenario"`
	PostScenarioArgs []string `yaml:"post_scenario_args"`
}
