# Cox models, curves and tests of one pooled table in R, as lines of: kind, name, value with all digits.
# Arguments: a CSV with the columns time, event, site, the terms as numbers, and group; the names of the terms.
library(survival)
given <- commandArgs(trailingOnly = TRUE)
rows <- read.csv(given[1], check.names = FALSE)
terms <- given[-1]
say <- function(kind, name, value) {
  cat(kind, name, ifelse(is.na(value), "NA", sprintf("%.17g", value)), sep = "\t")
  cat("\n")
}
complete <- rows[complete.cases(rows[, terms]), ]
design <- as.matrix(complete[, terms])
exact <- coxph.control(eps = 1e-12, toler.chol = 1e-14, iter.max = 50)
fit <- coxph(Surv(time, event) ~ design + strata(site), complete, ties = "efron", control = exact)
table <- summary(fit)$coefficients
trend <- cox.zph(fit, transform = "log", terms = FALSE)$table
for (place in seq_along(terms)) {
  say("coefficient", terms[place], table[place, 1])
  say("error", terms[place], table[place, 3])
  say("p", terms[place], table[place, 5])
  say("proportional_p", terms[place], trend[place, 3])
}
say("proportional_p", "all", trend[length(terms) + 1, 3])
grouped <- rows[!is.na(rows$group), ]
test <- survdiff(Surv(time, event) ~ group + strata(site), grouped)
say("log_rank", "chi_squared", test$chisq)
points <- summary(survfit(Surv(time, event) ~ group, grouped, conf.type = "log-log"))
for (k in seq_along(points$time)) {
  say("survival", sprintf("%s %g", sub("group=", "", points$strata[k]), points$time[k]), points$surv[k])
}
curves <- points$table
for (group in sort(unique(grouped$group))) {
  line <- curves[paste0("group=", group), ]
  for (column in c("median", "0.95LCL", "0.95UCL")) say(column, group, line[column])
}
